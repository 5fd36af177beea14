"""What `vision_config` and the files of preprocessors say of encoders, by their metadata."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder

_NORM_EPS = 1e-6
_FRAMES = 2
"""Frames of a patch: two tensors have its projection."""
_MAX_PIXELS = 1 << 30
_PREPROCESSOR = "preprocessor_config.json"


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


def vit(encoder: MmprojEncoder, *, model_type: str, hidden_act: str) -> dict[str, Any]:
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


def internvl(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of InternViT, whose variants are told by which tensors there are."""
    has = encoder.gguf.tensors.__contains__
    return {
        **vit(encoder, model_type="internvl_vision", hidden_act="gelu"),
        "norm_type": "layer_norm" if has("v.blk.0.ln1.bias") else "rms_norm",
        "attention_bias": has("v.blk.0.attn_q.bias"),
        "use_qk_norm": has("v.blk.0.attn_q_norm.weight"),
    }


siglip = partial(vit, model_type="siglip_vision_model", hidden_act="gelu_pytorch_tanh")


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
    return {_PREPROCESSOR: {"resample": 2, **encoder.statistics}}


def qwen_files(
    encoder: MmprojEncoder, *, min_pixels: int, max_pixels: int, videos: Mapping[str, Any] | None = None
) -> Files:
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


def idefics3_files(encoder: MmprojEncoder) -> Files:
    side = encoder.image_size
    images = {
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": encoder.keys.size("vision.preproc_image_size", 4 * side)},
        "resample": 1,
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}},
    }
    return {_PREPROCESSOR: images | encoder.statistics}


def square_files(encoder: MmprojEncoder, **fields: Any) -> Files:
    size = {"height": encoder.image_size, "width": encoder.image_size}
    return {_PREPROCESSOR: {"size": size, **fields, **encoder.statistics}}


def internvl_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file."""
    tiles = {
        f"{name}_patches": encoder.keys.size(f"vision.preproc_{name}_tiles", default)
        for name, default in (("min", 1), ("max", 12))
    }
    return square_files(encoder, **tiles)


def llava_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns which layer's features LLaVA takes: by default of the last that there is, unlike in `config.json`."""
    layers = encoder.gguf.numbers("clip.vision.feature_layer")
    if layers is not None and len(layers) != 1:
        encoder.keys.refuse("vision.feature_layer", "one layer", layers.tolist())
    resolutions = _resolutions(encoder)
    return {
        "vision_feature_layer": -1 if layers is None else int(layers[0]),
        **({"image_grid_pinpoints": resolutions} if resolutions else {}),
    }


def llava_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file, that of `-hf` checkpoints."""
    side, resolutions = encoder.image_size, _resolutions(encoder)
    images = {
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        **({"image_grid_pinpoints": resolutions} if resolutions else {}),
    }
    return {_PREPROCESSOR: images | encoder.statistics}


def _resolutions(encoder: MmprojEncoder) -> list[list[int]]:
    """Returns the resolutions of images that are cut into tiles; none if they are the published ones."""
    numbers = encoder.gguf.numbers("clip.vision.image_grid_pinpoints")
    if numbers is not None and len(numbers) % 2:
        encoder.keys.refuse("vision.image_grid_pinpoints", "pairs of numbers", numbers.tolist())
    return [] if numbers is None else numbers.astype(int).reshape(-1, 2).tolist()


def pixtral(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of Pixtral's encoder, whose norms add a constant."""
    encoder.keys.require("vision.attention.layer_norm_epsilon", encoder.norm_eps, 1e-5)
    return vit(encoder, model_type="pixtral", hidden_act="silu")


def pixtral_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the projector, which Pixtral's documents leave to LLaVA's defaults."""
    return {
        "model_type": "mistral3" if "mm.patch_merger.weight" in encoder.gguf.tensors else "llava",
        "spatial_merge_size": encoder.merge,
        "multimodal_projector_bias": "mm.1.bias" in encoder.gguf.tensors,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }


def longest_edge_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file."""
    token = encoder.patch_size * encoder.merge
    longest = encoder.keys.size("vision.preproc_image_size", encoder.image_size)
    size = {"patch_size": {"height": token, "width": token}, "size": {"longest_edge": longest}}
    return {_PREPROCESSOR: size | encoder.statistics}


def whisper(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of Whisper's encoder."""
    encoder.keys.require("audio.attention.layer_norm_epsilon", encoder.norm_eps, 1e-5)
    return {
        "num_mel_bins": encoder.keys.size("audio.num_mel_bins"),
        "d_model": encoder.width,
        "encoder_ffn_dim": encoder.intermediate_size,
        "encoder_layers": encoder.depth,
        "encoder_attention_heads": encoder.num_heads,
        "max_source_positions": encoder.shape("a.position_embd.weight", 2)[0],
    }


def whisper_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file, whose other fields are Whisper's."""
    return {_PREPROCESSOR: {"feature_size": encoder.keys.size("audio.num_mel_bins")}}


def ultravox_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the projector. llama.cpp has none with a norm behind it, as in v0.4."""
    return {
        "hidden_size": encoder.shape("mm.a.mlp.1.weight", 2)[0],
        "stack_factor": encoder.merge,
        "projector_ln_mid": True,
    }
