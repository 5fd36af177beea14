"""The encoders of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import (
    PREPROCESSOR,
    VIDEO_PREPROCESSOR,
)

_NORM_EPS = 1e-6
_FRAMES = 2
"""Frames of a patch: two tensors have its projection."""
_MAX_PIXELS = 1 << 30
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


def _qwen(encoder: MmprojEncoder) -> dict[str, Any]:
    encoder.keys.require("vision.attention.layer_norm_epsilon", encoder.norm_eps, _NORM_EPS)
    return {
        "depth": encoder.depth,
        "num_heads": encoder.num_heads,
        "in_channels": 3,
        "patch_size": encoder.patch_size,
        "spatial_merge_size": encoder.merge,
        "temporal_patch_size": _FRAMES,
    }


def qwen2_vl(encoder: MmprojEncoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "embed_dim": encoder.width,
        "hidden_size": encoder.output_width,
        "mlp_ratio": encoder.intermediate_size / encoder.width,
    }


def qwen2_5_vl(encoder: MmprojEncoder) -> dict[str, Any]:
    every = encoder.keys.size("vision.n_wa_pattern")
    return {
        **_qwen(encoder),
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "window_size": encoder.keys.size("vision.window_size", 112),
        "fullatt_block_indexes": [*range(every - 1, encoder.depth, every)],
        "tokens_per_second": 2,
    }


def qwen3_vl(encoder: MmprojEncoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "num_position_embeddings": encoder.shape("v.position_embd.weight", 2)[0],
        "deepstack_visual_indexes": encoder.deepstack(),
    }


def qwen_files(
    encoder: MmprojEncoder,
    *,
    min_pixels: int,
    max_pixels: int,
    frames: int = _FRAMES,
    videos: Mapping[str, Any] | None = None,
) -> Files:
    """Returns the preprocessors' files.

    Args:
        min_pixels, max_pixels: the published limits of images, which metadata may lack.
        frames: frames of a patch.
        videos: what the file about videos has besides; None: there is no such file.
    """
    shared: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": encoder.patch_size,
        "merge_size": encoder.merge,
        "temporal_patch_size": frames,
        **encoder.statistics,
    }
    limits = {
        f"{name}_pixels": encoder.keys.size(f"vision.image_{name}_pixels", default, most=_MAX_PIXELS)
        for name, default in (("min", min_pixels), ("max", max_pixels))
    }
    files = {PREPROCESSOR: shared | limits}
    return files if videos is None else {**files, VIDEO_PREPROCESSOR: {**shared, **videos}}


QWEN2_VL = Projector(
    architectures={"qwen2vl": "Qwen2VLForConditionalGeneration"},
    names={
        **_QWEN_NAMES,
        "ffn_up": "visual.blocks.{}.mlp.fc1",
        "ffn_down": "visual.blocks.{}.mlp.fc2",
    },
    encoder_config=qwen2_vl,
    files=partial(qwen_files, min_pixels=3136, max_pixels=12_845_056),
    has_mrope=True,
)
QWEN2_5_VL = Projector(
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
)
QWEN3_VL = Projector(
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
)
