"""What `vision_config` and the files of preprocessors say of encoders, by their metadata."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import Encoder, Files

_NORM_EPS = 1e-6
_FRAMES = 2
"""Frames of a patch: two tensors have its projection."""
_MAX_PIXELS = 1 << 30
_PREPROCESSOR = "preprocessor_config.json"


def _qwen(encoder: Encoder) -> dict[str, Any]:
    encoder.keys.require("vision.attention.layer_norm_epsilon", encoder.norm_eps, _NORM_EPS)
    return {
        "depth": encoder.depth,
        "num_heads": encoder.num_heads,
        "in_channels": 3,
        "patch_size": encoder.patch_size,
        "spatial_merge_size": encoder.merge,
        "temporal_patch_size": _FRAMES,
    }


def qwen2_vl(encoder: Encoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "embed_dim": encoder.width,
        "hidden_size": encoder.output_width,
        "mlp_ratio": encoder.intermediate_size / encoder.width,
    }


def qwen2_5_vl(encoder: Encoder) -> dict[str, Any]:
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


def qwen3_vl(encoder: Encoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "num_position_embeddings": encoder.shape("v.position_embd.weight", 2)[0],
        "deepstack_visual_indexes": encoder.deepstack(),
    }


def vit(encoder: Encoder, *, model_type: str, hidden_act: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": encoder.width,
        "intermediate_size": encoder.intermediate_size,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.num_heads,
        "image_size": encoder.image_size,
        "patch_size": encoder.patch_size,
        "hidden_act": hidden_act,
        "layer_norm_eps": encoder.norm_eps,
    }


siglip = partial(vit, model_type="siglip_vision_model", hidden_act="gelu_pytorch_tanh")


def qwen_files(encoder: Encoder, *, min_pixels: int, max_pixels: int, videos: Mapping[str, Any] | None = None) -> Files:
    """Returns the preprocessors' files.

    Args:
        min_pixels, max_pixels: the published limits of images, which metadata may lack.
        videos: what the file about videos has besides; None: there is no such file.
    """
    shared: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": encoder.patch_size,
        "merge_size": encoder.merge,
        "temporal_patch_size": _FRAMES,
        **encoder.statistics,
    }
    limits = {
        f"{name}_pixels": encoder.keys.size(f"vision.image_{name}_pixels", default, most=_MAX_PIXELS)
        for name, default in (("min", min_pixels), ("max", max_pixels))
    }
    files = {_PREPROCESSOR: shared | limits}
    return files if videos is None else {**files, "video_preprocessor_config.json": {**shared, **videos}}


def idefics3_files(encoder: Encoder) -> Files:
    side = encoder.image_size
    images = {
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": encoder.keys.size("vision.preproc_image_size", 4 * side)},
        "resample": 1,
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}},
    }
    return {_PREPROCESSOR: images | encoder.statistics}


def square_files(encoder: Encoder, **fields: Any) -> Files:
    size = {"height": encoder.image_size, "width": encoder.image_size}
    return {_PREPROCESSOR: {"size": size, **fields, **encoder.statistics}}
