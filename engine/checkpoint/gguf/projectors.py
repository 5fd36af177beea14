"""The values of `clip.projector_type` that are served: names of tensors, what llama.cpp's converter does to them, and
what `config.json` and the files of preprocessors say.

Names are those of gguf-py/gguf/tensor_mapping.py of llama.cpp; what the converter does is in conversion/.
"""

from collections.abc import Mapping
from functools import partial

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.encoder import Projector
from glimpse.engine.checkpoint.gguf.encoder_configs import (
    idefics3_files,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    qwen_files,
    siglip,
    square_files,
    vit,
)
from glimpse.engine.checkpoint.gguf.header import Gguf

PROJECTOR = "clip.projector_type"
_QWEN_NAMES: Mapping[str, str] = {
    "v.patch_embd": "visual.patch_embed.proj",
    "v.position_embd": "visual.pos_embed",
    "ln1": "visual.blocks.{}.norm1",
    "ln2": "visual.blocks.{}.norm2",
    **dict.fromkeys(("attn_qkv", "attn_q", "attn_k", "attn_v"), "visual.blocks.{}.attn.qkv"),
    "attn_out": "visual.blocks.{}.attn.proj",
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
}


def _vit_names(tower: str) -> dict[str, str]:
    """Returns names of CLIP and SigLIP behind that of the tower."""
    return {
        "v.class_embd": f"{tower}.embeddings.class_embedding",
        "v.patch_embd": f"{tower}.embeddings.patch_embedding",
        "v.position_embd": f"{tower}.embeddings.position_embedding",
        "v.pre_ln": f"{tower}.pre_layrnorm",  # so published
        "ln1": f"{tower}.encoder.layers.{{}}.layer_norm1",
        "ln2": f"{tower}.encoder.layers.{{}}.layer_norm2",
        "attn_q": f"{tower}.encoder.layers.{{}}.self_attn.q_proj",
        "attn_k": f"{tower}.encoder.layers.{{}}.self_attn.k_proj",
        "attn_v": f"{tower}.encoder.layers.{{}}.self_attn.v_proj",
        "attn_out": f"{tower}.encoder.layers.{{}}.self_attn.out_proj",
        "ffn_up": f"{tower}.encoder.layers.{{}}.mlp.fc1",
        "ffn_down": f"{tower}.encoder.layers.{{}}.mlp.fc2",
        "v.post_ln": f"{tower}.post_layernorm",
    }


PROJECTORS: Mapping[str, Projector] = {
    "qwen2vl_merger": Projector(
        architectures={"qwen2vl": "Qwen2VLForConditionalGeneration"},
        names={
            **_QWEN_NAMES,
            "ffn_up": "visual.blocks.{}.mlp.fc1",
            "ffn_down": "visual.blocks.{}.mlp.fc2",
        },
        vision_config=qwen2_vl,
        files=partial(qwen_files, min_pixels=3136, max_pixels=12_845_056),
        has_mrope=True,
    ),
    "qwen2.5vl_merger": Projector(
        architectures={"qwen2vl": "Qwen2_5_VLForConditionalGeneration"},
        names={
            **_QWEN_NAMES,
            "ffn_gate": "visual.blocks.{}.mlp.gate_proj",
            "ffn_up": "visual.blocks.{}.mlp.up_proj",
            "ffn_down": "visual.blocks.{}.mlp.down_proj",
        },
        vision_config=qwen2_5_vl,
        activation="use_silu",
        files=partial(qwen_files, min_pixels=3136, max_pixels=12_845_056),
        has_mrope=True,
    ),
    "qwen3vl_merger": Projector(
        architectures={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        },
        names={
            **_QWEN_NAMES,
            "ffn_up": "visual.blocks.{}.mlp.linear_fc1",
            "ffn_down": "visual.blocks.{}.mlp.linear_fc2",
            "v.post_ln": "visual.merger.norm",
            "mm.0": "visual.merger.linear_fc1",
            "mm.2": "visual.merger.linear_fc2",
            "norm": "visual.deepstack_merger_list.{}.norm",
            "fc1": "visual.deepstack_merger_list.{}.linear_fc1",
            "fc2": "visual.deepstack_merger_list.{}.linear_fc2",
        },
        vision_config=qwen3_vl,
        activation="use_gelu",
        files=partial(
            qwen_files,
            min_pixels=65_536,
            max_pixels=16_777_216,
            videos={"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}},
        ),
        has_mrope=True,
    ),
    "idefics3": Projector(
        architectures={"llama": "Idefics3ForConditionalGeneration"},
        names={**_vit_names("model.vision_model"), "mm.model.fc": "model.connector.modality_projection.proj"},
        output=("mm.model.fc.weight", 0),
        squares="mm.model.fc.weight",
        merge_key="vision.projector.scale_factor",
        vision_config=partial(vit, model_type="idefics3_vision", hidden_act="gelu_pytorch_tanh"),
        config=lambda encoder: {"scale_factor": encoder.merge},
        activation="use_gelu",
        files=idefics3_files,
        placeholders={"image_token_id": ("<image>",)},
    ),
    "gemma3": Projector(
        architectures={"gemma3": "Gemma3ForConditionalGeneration"},
        names={
            **_vit_names("vision_tower.vision_model"),
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
            "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
        },
        changes={"mm.soft_emb_norm": Change.PLUS_ONE},
        output=("mm.input_projection.weight", 1),
        squares=None,
        merge_key="vision.projector.scale_factor",
        merge=4,
        vision_config=siglip,
        config=lambda encoder: {
            "mm_tokens_per_image": (encoder.image_size // encoder.patch_size // encoder.merge) ** 2
        },
        activation="use_gelu",
        files=partial(square_files, resample=2),
        # Files of the decoder lack the token that stands for embeddings, which no text has.
        placeholders={
            "image_token_index": ("<image_soft_token>", "<pad>"),
            "boi_token_index": ("<start_of_image>",),
            "eoi_token_index": ("<end_of_image>",),
        },
    ),
}


def projector_of(mmproj: Gguf) -> Projector | None:
    """Returns the projector of a file with an encoder; None if it is not served."""
    return PROJECTORS.get(str(mmproj.get(PROJECTOR)))
