"""The encoders of Idefics3, SmolVLM, Gemma 3, InternVL and LFM2-VL."""

from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import PREPROCESSOR, siglip, square_files, vit, vit_names
from glimpse.engine.checkpoint.gguf.header import Gguf


def _smolvlm2(text: Gguf, mmproj: Gguf) -> str | None:
    # Of the models with this encoder, only SmolVLM2 reads videos, and only its name tells it.
    is_smolvlm2 = any("smolvlm2" in str(each.get("general.name")).lower() for each in (text, mmproj))
    return "SmolVLMForConditionalGeneration" if is_smolvlm2 else None


def idefics3_files(encoder: MmprojEncoder) -> Files:
    side = encoder.image_size
    images = {
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": encoder.keys.size("vision.preproc_image_size", 4 * side)},
        "resample": 1,
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}},
    }
    return {PREPROCESSOR: images | encoder.statistics}


def internvl(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of InternViT, whose variants are told by which tensors there are."""
    has = encoder.gguf.tensors.__contains__
    return {
        **vit(encoder, model_type="internvl_vision", hidden_act="gelu"),
        "norm_type": "layer_norm" if has("v.blk.0.ln1.bias") else "rms_norm",
        "attention_bias": has("v.blk.0.attn_q.bias"),
        "use_qk_norm": has("v.blk.0.attn_q_norm.weight"),
    }


def internvl_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file."""
    tiles = {
        f"{name}_patches": encoder.keys.size(f"vision.preproc_{name}_tiles", default)
        for name, default in (("min", 1), ("max", 12))
    }
    return square_files(encoder, **tiles)


def lfm2(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of SigLIP2, whose images have any size: that of the file says nothing."""
    num_patches = encoder.shape("v.position_embd.weight", 2)[0]
    return {**siglip(encoder), "model_type": "siglip2_vision_model", "num_patches": num_patches}


def lfm2_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the projector."""
    return {
        "downsample_factor": encoder.merge,
        "projector_hidden_size": encoder.shape("mm.1.weight", 2)[0],
        "projector_use_layernorm": "mm.input_norm.weight" in encoder.gguf.tensors,
        "projector_bias": "mm.1.bias" in encoder.gguf.tensors,
    }


def lfm2_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file. Sizes of tiles are the published ones, which other files do not have either."""
    return {PREPROCESSOR: {"resample": 2, **encoder.statistics}}


IDEFICS3 = Projector(
    architectures={"llama": "Idefics3ForConditionalGeneration"},
    variant=_smolvlm2,
    names={**vit_names("model.vision_model"), "mm.model.fc": "model.connector.modality_projection.proj"},
    output=("mm.model.fc.weight", 0),
    squares="mm.model.fc.weight",
    merge_key="vision.projector.scale_factor",
    encoder_config=partial(vit, model_type="idefics3_vision", hidden_act="gelu_pytorch_tanh"),
    config=lambda encoder: {"scale_factor": encoder.merge},
    activation="use_gelu",
    files=idefics3_files,
    placeholders={"image_token_id": ("<image>",)},
)
GEMMA3 = Projector(
    architectures={"gemma3": "Gemma3ForConditionalGeneration"},
    names={
        **vit_names("vision_tower.vision_model"),
        "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
        "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
    },
    changes={"mm.soft_emb_norm": Change.PLUS_ONE},
    output=("mm.input_projection.weight", 1),
    squares=None,
    merge_key="vision.projector.scale_factor",
    merge=4,
    encoder_config=siglip,
    config=lambda encoder: {"mm_tokens_per_image": (encoder.image_size // encoder.patch_size // encoder.merge) ** 2},
    activation="use_gelu",
    files=partial(square_files, resample=2),
    # Files of the decoder lack the token that stands for embeddings, which no text has.
    placeholders={
        "image_token_index": ("<image_soft_token>", "<pad>"),
        "boi_token_index": ("<start_of_image>",),
        "eoi_token_index": ("<end_of_image>",),
    },
)
INTERNVL = Projector(
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
)
LFM2_VL = Projector(
    architectures={"lfm2": "Lfm2VlForConditionalGeneration"},
    names={
        **vit_names("vision_tower"),
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
)
