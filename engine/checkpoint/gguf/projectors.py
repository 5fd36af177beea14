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
    internvl,
    internvl_files,
    lfm2,
    lfm2_config,
    lfm2_files,
    llava_config,
    llava_files,
    longest_edge_files,
    pixtral,
    pixtral_config,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_vl,
    qwen_files,
    siglip,
    square_files,
    ultravox_config,
    vit,
    whisper,
    whisper_files,
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


_WHISPER_NAMES: Mapping[str, str] = {
    "a.conv1d.1": "audio_tower.conv1",
    "a.conv1d.2": "audio_tower.conv2",
    "a.position_embd": "audio_tower.embed_positions",
    "ln1": "audio_tower.layers.{}.self_attn_layer_norm",
    "ln2": "audio_tower.layers.{}.final_layer_norm",
    "attn_q": "audio_tower.layers.{}.self_attn.q_proj",
    "attn_k": "audio_tower.layers.{}.self_attn.k_proj",
    "attn_v": "audio_tower.layers.{}.self_attn.v_proj",
    "attn_out": "audio_tower.layers.{}.self_attn.out_proj",
    "ffn_up": "audio_tower.layers.{}.fc1",
    "ffn_down": "audio_tower.layers.{}.fc2",
    "a.post_ln": "audio_tower.layer_norm",
}
_CONVOLUTIONS: Mapping[str, Change | None] = dict.fromkeys(("a.conv1d.1.bias", "a.conv1d.2.bias"), Change.UNSQUEEZED)
_MERGER = "mm.patch_merger.weight"
_PIXTRAL_NAMES: Mapping[str, str] = {
    "v.patch_embd": "vision_tower.patch_conv",
    "v.pre_ln": "vision_tower.ln_pre",
    "ln1": "vision_tower.transformer.layers.{}.attention_norm",
    "ln2": "vision_tower.transformer.layers.{}.ffn_norm",
    "attn_q": "vision_tower.transformer.layers.{}.attention.q_proj",
    "attn_k": "vision_tower.transformer.layers.{}.attention.k_proj",
    "attn_v": "vision_tower.transformer.layers.{}.attention.v_proj",
    "attn_out": "vision_tower.transformer.layers.{}.attention.o_proj",
    "ffn_gate": "vision_tower.transformer.layers.{}.feed_forward.gate_proj",
    "ffn_up": "vision_tower.transformer.layers.{}.feed_forward.up_proj",
    "ffn_down": "vision_tower.transformer.layers.{}.feed_forward.down_proj",
    "mm.input_norm": "multi_modal_projector.norm",
    "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
    "mm.1": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
}


def _smolvlm2(text: Gguf, mmproj: Gguf) -> str | None:
    # Of the models with this encoder, only SmolVLM2 reads videos, and only its name tells it.
    is_smolvlm2 = any("smolvlm2" in str(each.get("general.name")).lower() for each in (text, mmproj))
    return "SmolVLMForConditionalGeneration" if is_smolvlm2 else None


_NEWLINE = "model.image_newline"
PROJECTORS: Mapping[str, Projector] = {
    "qwen2vl_merger": Projector(
        architectures={"qwen2vl": "Qwen2VLForConditionalGeneration"},
        names={
            **_QWEN_NAMES,
            "ffn_up": "visual.blocks.{}.mlp.fc1",
            "ffn_down": "visual.blocks.{}.mlp.fc2",
        },
        encoder_config=qwen2_vl,
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
        encoder_config=qwen2_5_vl,
        activation="use_silu",
        files=partial(qwen_files, min_pixels=3136, max_pixels=12_845_056),
        has_mrope=True,
    ),
    "qwen3vl_merger": Projector(
        architectures={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
            "qwen35": "Qwen3_5ForConditionalGeneration",
            "qwen35moe": "Qwen3_5MoeForConditionalGeneration",
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
        encoder_config=qwen3_vl,
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
        variant=_smolvlm2,
        names={**_vit_names("model.vision_model"), "mm.model.fc": "model.connector.modality_projection.proj"},
        output=("mm.model.fc.weight", 0),
        squares="mm.model.fc.weight",
        merge_key="vision.projector.scale_factor",
        encoder_config=partial(vit, model_type="idefics3_vision", hidden_act="gelu_pytorch_tanh"),
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
        encoder_config=siglip,
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
    "internvl": Projector(
        architectures=dict.fromkeys(("llama", "qwen2", "qwen3"), "InternVLForConditionalGeneration"),
        names={
            "v.class_embd": "vision_tower.embeddings.cls_token",
            "v.position_embd.weight": "vision_tower.embeddings.position_embeddings",
            "v.patch_embd": "vision_tower.embeddings.patch_embeddings.projection",
            "ln1": "vision_tower.encoder.layer.{}.layernorm_before",
            "ln2": "vision_tower.encoder.layer.{}.layernorm_after",
            "ls1.weight": "vision_tower.encoder.layer.{}.lambda_1",
            "ls2.weight": "vision_tower.encoder.layer.{}.lambda_2",
            "attn_q": "vision_tower.encoder.layer.{}.attention.q_proj",
            "attn_k": "vision_tower.encoder.layer.{}.attention.k_proj",
            "attn_v": "vision_tower.encoder.layer.{}.attention.v_proj",
            "attn_q_norm": "vision_tower.encoder.layer.{}.attention.q_norm",
            "attn_k_norm": "vision_tower.encoder.layer.{}.attention.k_norm",
            "attn_out": "vision_tower.encoder.layer.{}.attention.projection_layer",
            "ffn_up": "vision_tower.encoder.layer.{}.mlp.fc1",
            "ffn_down": "vision_tower.encoder.layer.{}.mlp.fc2",
            "mm.model.mlp.0": "multi_modal_projector.layer_norm",
            "mm.model.mlp.1": "multi_modal_projector.linear_1",
            "mm.model.mlp.3": "multi_modal_projector.linear_2",
        },
        output=("mm.model.mlp.3.weight", 0),
        squares="mm.model.mlp.1.weight",
        merge_key="vision.projector.scale_factor",
        encoder_config=internvl,
        config=lambda encoder: {
            "downsample_ratio": 1 / encoder.merge,
            "image_seq_length": (encoder.image_size // encoder.patch_size // encoder.merge) ** 2,
        },
        activation="use_gelu",
        files=internvl_files,
        placeholders={"image_token_id": ("<IMG_CONTEXT>",)},
    ),
    "lfm2": Projector(
        architectures={"lfm2": "Lfm2VlForConditionalGeneration"},
        names={
            **_vit_names("vision_tower"),
            "mm.input_norm": "multi_modal_projector.layer_norm",
            "mm.1": "multi_modal_projector.linear_1",
            "mm.2": "multi_modal_projector.linear_2",
        },
        squares="mm.1.weight",
        merge_key="vision.projector.scale_factor",
        encoder_config=lfm2,
        config=lfm2_config,
        activation="use_gelu",
        files=lfm2_files,
        placeholders={"image_token_id": ("<image>",)},
    ),
    # Pixtral, Mistral Small 3.1 and later, Ministral 3.
    "pixtral": Projector(
        architectures={
            "llama": "PixtralForConditionalGeneration",
            "mistral3": "Mistral3ForConditionalGeneration",
        },
        variant=lambda _, mmproj: "Mistral3ForConditionalGeneration" if _MERGER in mmproj.tensors else None,
        names=_PIXTRAL_NAMES,
        unused="v.token_embd.img_break",
        changes={"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED},
        squares=None,
        merge=1,
        encoder_config=pixtral,
        config=pixtral_config,
        activation="use_silu",
        files=longest_edge_files,
        placeholders={"image_token_index": ("[IMG]",)},
    ),
    "lightonocr": Projector(
        architectures={"qwen3": "LightOnOcrForConditionalGeneration"},
        names=_PIXTRAL_NAMES,
        changes={"attn_q": Change.PERMUTED, "attn_k": Change.PERMUTED},
        squares=None,
        merge=1,
        encoder_config=pixtral,
        config=lambda encoder: {**pixtral_config(encoder), "model_type": "lighton_ocr"},
        activation="use_silu",
        files=longest_edge_files,
        placeholders={"image_token_id": ("<|image_pad|>",)},
    ),
    "qwen2a": Projector(
        architectures={"qwen2": "Qwen2AudioForConditionalGeneration"},
        modality="audio",
        names={
            **_WHISPER_NAMES,
            "mm.a.fc": "multi_modal_projector.linear",
        },
        changes=_CONVOLUTIONS,
        output=("mm.a.fc.weight", 0),
        squares=None,
        encoder_config=whisper,
        files=whisper_files,
        placeholders={"audio_token_index": ("<|AUDIO|>",)},
    ),
    "ultravox": Projector(
        architectures={"llama": "UltravoxModel"},
        modality="audio",
        names={
            **_WHISPER_NAMES,
            "mm.a.norm_pre": "multi_modal_projector.ln_pre",
            "mm.a.norm_mid": "multi_modal_projector.ln_mid",
            "mm.a.mlp.1": "multi_modal_projector.linear_1",
            "mm.a.mlp.2": "multi_modal_projector.linear_2",
        },
        changes=_CONVOLUTIONS,
        output=("mm.a.mlp.2.weight", 0),
        squares=None,
        merge_key="audio.projector.stack_factor",
        encoder_config=whisper,
        config=ultravox_config,
        files=lambda _encoder: {},  # without one, it is made of the encoder's sizes
        placeholders={},
    ),
    # LLaVA-1.5 and LLaVA-NeXT, of old and new files.
    "mlp": Projector(
        architectures=dict.fromkeys(("llama", "qwen2"), "LlavaForConditionalGeneration"),
        variant=lambda _, mmproj: "LlavaNextForConditionalGeneration" if _NEWLINE in mmproj.tensors else None,
        names={
            **_vit_names("vision_tower.vision_model"),
            "mm.0": "multi_modal_projector.linear_1",
            "mm.2": "multi_modal_projector.linear_2",
            _NEWLINE: "image_newline",
        },
        squares=None,
        encoder_config=partial(vit, model_type="clip_vision_model", hidden_act="quick_gelu"),
        config=llava_config,
        files=llava_files,
        placeholders={"image_token_index": ("<image>", "<unk>")},
    ),
}


def projector_name(mmproj: Gguf) -> object:
    """Returns the kind of projector of a file with an encoder."""
    # Old files of LLaVA do not name it.
    return mmproj.get(PROJECTOR) or ("mlp" if mmproj.get("clip.has_llava_projector") else None)


def projector_of(mmproj: Gguf) -> Projector | None:
    """Returns the projector of a file with an encoder; None if it is not served."""
    return PROJECTORS.get(str(projector_name(mmproj)))
