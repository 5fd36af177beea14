"""Pairs of GGUF files made of checkpoints of vision models: the decoder and its mmproj, as llama.cpp's converter writes
them."""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints.gguf import PRECISE, add_tensor, finish, permuted, write_gguf

Entries = Mapping[str, Any]
"""Metadata: a number, a text, a truth value or a list by each key; None where there is none."""

ARCHITECTURES = {
    "qwen2_vl": ("qwen2vl", "qwen2vl_merger"),
    "qwen2_5_vl": ("qwen2vl", "qwen2.5vl_merger"),
    "qwen3_vl": ("qwen3vl", "qwen3vl_merger"),
    "qwen3_vl_moe": ("qwen3vlmoe", "qwen3vl_merger"),
    "qwen3_5": ("qwen35", "qwen3vl_merger"),
    "idefics3": ("llama", "idefics3"),
    "smolvlm": ("llama", "idefics3"),
    "gemma3": ("gemma3", "gemma3"),
    "gemma4": ("gemma4", "gemma4v"),
    "internvl_chat": (None, "internvl"),
    "lfm2_vl": ("lfm2", "lfm2"),
    "qwen2_audio": ("qwen2", "qwen2a"),
    "glm4v": ("glm4", "glm4v"),
    "glm46v": ("glm4", "glm4v"),
    "glm_ocr": ("glm4", "glm4v"),
    "paddleocr_vl": ("paddleocr", "paddleocr"),
    "minicpmv": (None, "resampler"),
    "minicpmv4_6": ("qwen35", "minicpmv4_6"),
    "ultravox": ("llama", "ultravox"),
    "mistral3": ("mistral3", "pixtral"),
    "pixtral": ("llama", "pixtral"),
    "lighton_ocr": ("qwen3", "lightonocr"),
    "llava": ("llama", "mlp"),
    "llava_next": ("llama", "mlp"),
}
"""`general.architecture`, of which None is the decoder's `model_type`, and `clip.projector_type`, by `model_type`."""
MINICPMV = {2.6: (3, "qwen2"), 4.5: (6, "qwen3")}
"""Number and decoder of each version of MiniCPM-V."""


def write_pair(folder: Path, checkpoint: Path, kind: str = "F32", *, lacks: Sequence[str] = (), **changes: Any) -> Path:
    """Writes a decoder's file and `mmproj-model.gguf` beside it into a folder. Returns the former.

    Args:
        kind: type of the matrices.
        lacks: special tokens that the decoder's file does not have.
        changes: see `write_mmproj`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_bytes())
    write_mmproj(folder / "mmproj-model.gguf", checkpoint, kind, **changes)
    architecture = ARCHITECTURES[_kind(config)][0] or _text(config)["model_type"]
    if architecture == "minicpmv":
        _, architecture = MINICPMV[config["version"]]
    return write_gguf(folder / "model.gguf", checkpoint, architecture, kind, lacks=lacks)


def _kind(config: Mapping[str, Any]) -> str:
    """Returns `model_type`, which is LLaVA's in Pixtral's documents."""
    is_pixtral = config["model_type"] == "llava" and config["vision_config"]["model_type"] == "pixtral"
    return "pixtral" if is_pixtral else config["model_type"]


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("text_config") or config.get("llm_config") or config


def write_rounded(folder: Path, checkpoint: Path, kind: str) -> Path:
    """Writes a checkpoint with the weights that its pair of files in this type has."""
    shutil.copytree(checkpoint, folder)
    file = folder / "model.safetensors"
    save_file({name: _rounded(name, tensor, kind) for name, tensor in load_file(file).items()}, file)
    return folder


def _rounded(name: str, tensor: Tensor, kind: str) -> Tensor:
    if tensor.dim() == 1 or kind == "F32" or PRECISE.search(name):
        return tensor
    inputs_first = tensor.dim() == 3 or name == "resampler.proj"  # as in stacks of experts
    values = tensor.mT.contiguous() if inputs_first else tensor
    is_patches = name.endswith("patch_embedding.weight")  # whose rows in files are those of a patch's pixels
    number = GGMLQuantizationType["F16" if kind == "Q8_0" and (is_patches or values.shape[-1] % 32) else kind]
    found = torch.from_numpy(np.array(dequantize(quantize(values.numpy(), number), number), dtype=np.float32))
    return (found.mT if inputs_first else found).contiguous()


def write_mmproj(
    file: Path, checkpoint: Path, kind: str = "F32", *, swapped: bool = False, entries: Entries | None = None
) -> Path:
    """Writes the encoder of a checkpoint.

    Args:
        swapped: the products of MLPs have each other's names, as in old files.
        entries: metadata that differs from the checkpoint's.
    """
    config = json.loads((checkpoint / "config.json").read_bytes())
    writer, vision = GGUFWriter(file, "clip"), config.get("vision_config") or config["audio_config"]
    processor = checkpoint / "preprocessor_config.json"
    images = json.loads(processor.read_bytes()) if processor.exists() else _PIXELS.get(config["model_type"], {})
    metadata = _metadata(config, images) if "vision_config" in config else _audio_metadata(config)
    for key, value in {**metadata, **(entries or {})}.items():
        _add_entry(writer, key, value)
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, max(_depth(vision), 4))  # mlp1.3 counts too
    converted = _TENSORS.get(ARCHITECTURES[_kind(config)][1], _qwen)
    weights = load_file(checkpoint / "model.safetensors").items()
    for name, tensor in (part for stored, each in weights for part in converted(stored, each, vision)):
        stored = (
            name
            if name.startswith(("v.", "mm.", "model.image", "resampler."))
            else names.get_name(name, try_suffixes=(".weight", ".bias", *_BOUNDS))
        )
        assert stored is not None, name
        if swapped:
            stored = stored.replace("ffn_up", "ffn_x").replace("ffn_down", "ffn_up").replace("ffn_x", "ffn_down")
        values = tensor.float() + 1 if stored == "mm.soft_emb_norm.weight" else tensor.float()
        own_kind = "F32" if PRECISE.search(stored) else kind
        add_tensor(writer, stored, values.contiguous().numpy(), own_kind, np.random.default_rng(0))
    finish(writer)
    return file


_BOUNDS = tuple(f".{part}_{bound}" for part in ("input", "output") for bound in ("min", "max"))
_PIXELS = {
    "internvl_chat": {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
    "gemma4": {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},
}
"""The numbers of llama.cpp's converter, where the checkpoint has no file of them."""


def _metadata(config: Mapping[str, Any], images: Mapping[str, Any]) -> dict[str, Any]:
    vision, text = config["vision_config"], _text(config)
    metadata: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": ARCHITECTURES[_kind(config)][1],
        "clip.vision.projection_dim": text["hidden_size"],
        "clip.vision.image_size": vision.get("image_size", 560),
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "clip.vision.feed_forward_length": vision.get("intermediate_size", 0),
        "clip.vision.block_count": _depth(vision),
        "clip.vision.attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps") or text["rms_norm_eps"],
        "clip.vision.image_mean": images.get("image_mean") or images["norm_mean"],
        "clip.vision.image_std": images.get("image_std") or images["norm_std"],
    }
    side = vision.get("image_size", 0) // vision["patch_size"]
    match metadata["clip.projector_type"]:
        case "resampler":
            number, _ = MINICPMV[config["version"]]
            return metadata | {
                "clip.use_gelu": True,
                "clip.minicpmv_version": number,
                "clip.vision.image_size": images["scale_resolution"],
                "clip.vision.attention.layer_norm_epsilon": 1e-6,
            }
        case "glm4v":
            return metadata | {
                "general.name": "GLM 4.6V Flash" if config["model_type"] == "glm46v" else None,
                "clip.use_silu": True,
                "clip.vision.attention.layer_norm_epsilon": vision["rms_norm_eps"],
            }
        case "paddleocr":
            return metadata | {
                "clip.use_gelu": True,
                "clip.vision.image_size": math.isqrt(images["max_pixels"]),
                "clip.vision.image_min_pixels": images["min_pixels"],
                "clip.vision.image_max_pixels": images["max_pixels"],
            }
        case "gemma4v":
            return metadata | _gemma4_metadata(config)
        case "minicpmv4_6":
            return metadata | {
                "clip.use_gelu": True,
                "clip.vision.image_size": images["scale_resolution"],
                "clip.vision.projector.scale_factor": 4,
                "clip.vision.wa_layer_indexes": [config["insert_layer_id"]],
            }
        case "idefics3":
            return metadata | {
                "general.name": "SmolVLM2 tiny" if config["model_type"] == "smolvlm" else None,
                "clip.use_gelu": True,
                "clip.vision.projector.scale_factor": config["scale_factor"],
                "clip.vision.preproc_image_size": images["size"]["longest_edge"],
            }
        case "pixtral" | "lightonocr":
            merge = config.get("spatial_merge_size", 1)
            return metadata | {
                "clip.use_silu": True,
                "clip.vision.spatial_merge_size": merge,
                "clip.vision.attention.layer_norm_epsilon": 1e-5,
            }
        case "lfm2":
            factor = config.get("downsample_factor", 2)
            return metadata | {"clip.use_gelu": True, "clip.vision.projector.scale_factor": factor}
        case "gemma3":
            factor = side // math.isqrt(config["mm_tokens_per_image"])
            return metadata | {"clip.use_gelu": True, "clip.vision.projector.scale_factor": factor}
        case "mlp":
            layer = config["vision_feature_layer"] % (vision["num_hidden_layers"] + 1)
            pinpoints = config.get("image_grid_pinpoints")
            return metadata | {
                "clip.vision.block_count": layer,
                "clip.vision.feature_layer": [layer],
                "clip.vision.image_grid_pinpoints": pinpoints and [side for each in pinpoints for side in each],
            }
        case "internvl":
            return metadata | {
                "clip.use_gelu": True,
                "clip.vision.projector.scale_factor": round(1 / config["downsample_ratio"]),
                "clip.vision.preproc_min_tiles": config["min_dynamic_patch"],
                "clip.vision.preproc_max_tiles": config["max_dynamic_patch"],
            }
        case _:
            return metadata | _qwen_metadata(config, images)


def _gemma4_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "clip.projector_type": None,
        "clip.vision.projector_type": "gemma4v",
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": config["vision_config"]["pooling_kernel_size"],
    }
    if not (audio := config["audio_config"]):
        return own
    return own | {
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type": "gemma4a",
        "clip.audio.embedding_length": audio["hidden_size"],
        "clip.audio.block_count": audio["num_hidden_layers"],
        "clip.audio.attention.head_count": audio["num_attention_heads"],
    }


def _qwen_metadata(config: Mapping[str, Any], images: Mapping[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    size = images.get("size") or {"shortest_edge": images["min_pixels"], "longest_edge": images["max_pixels"]}
    metadata: dict[str, Any] = {
        "clip.vision.image_min_pixels": size["shortest_edge"],
        "clip.vision.image_max_pixels": size["longest_edge"],
    }
    if config["model_type"] == "qwen2_5_vl":
        metadata |= {
            "clip.use_silu": True,
            "clip.vision.n_wa_pattern": vision["fullatt_block_indexes"][0] + 1,
            "clip.vision.window_size": vision["window_size"],
        }
    if ARCHITECTURES[config["model_type"]][1] == "qwen3vl_merger":
        blocks = vision.get("deepstack_visual_indexes") or ()
        metadata |= {
            "clip.use_gelu": True,
            "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
            "clip.vision.is_deepstack_layers": [block in blocks for block in range(vision["depth"])],
        }
    return metadata


def _audio_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    audio = config["audio_config"]
    return {
        "clip.has_audio_encoder": True,
        "clip.projector_type": ARCHITECTURES[config["model_type"]][1],
        "clip.audio.projection_dim": _text(config)["hidden_size"],
        "clip.audio.embedding_length": audio["d_model"],
        "clip.audio.feed_forward_length": audio["encoder_ffn_dim"],
        "clip.audio.block_count": audio["encoder_layers"],
        "clip.audio.attention.head_count": audio["encoder_attention_heads"],
        "clip.audio.attention.layer_norm_epsilon": 1e-5,
        "clip.audio.num_mel_bins": audio["num_mel_bins"],
        "clip.audio.projector.stack_factor": config.get("stack_factor"),
    }


def _depth(vision: Mapping[str, Any]) -> int:
    return vision.get("depth") or vision.get("num_hidden_layers") or vision["encoder_layers"]


def _add_entry(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _plain(name: str, tensor: Tensor, _vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    if re.search("vision_model|connector|vision_tower|multi_modal_projector", name):
        yield name.replace("projection_weight", "projection.weight"), tensor


def _qwen(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name, blocks = stored.removeprefix("model."), vision.get("deepstack_visual_indexes")
    if not name.startswith("visual."):
        return
    if name == "visual.patch_embed.proj.weight":
        yield from ((f"v.patch_embd.weight{suffix}", tensor[:, :, frame]) for frame, suffix in ((0, ""), (1, ".1")))
    elif ".qkv." in name and blocks is None:
        yield from ((name.replace("qkv", part), rows) for part, rows in zip("qkv", tensor.chunk(3), strict=True))
    elif name.startswith("visual.deepstack_merger_list.") and blocks is not None:
        _, _, index, rest = name.split(".", 3)
        yield f"model.visual.deepstack_merger_list.{blocks[int(index)]}.{rest}", tensor
    else:
        for ours, known in (("merger.norm", "merger.ln_q"), ("merger.linear_fc1", "merger.mlp.0")):
            name = name.replace(ours, known)
        yield name.replace("merger.linear_fc2", "merger.mlp.2"), tensor


def _glm4v(stored: str, tensor: Tensor, _vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name = stored.removeprefix("model.")
    if name == "visual.patch_embed.proj.weight":
        yield from ((f"v.patch_embd.weight{suffix}", tensor[:, :, frame]) for frame, suffix in ((0, ""), (1, ".1")))
    elif name.startswith("visual."):
        yield name, tensor


def _paddleocr_vl(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name = stored.replace("model.projector.", "mlp_AR.").replace("visual.vision_model.", "vision_tower.vision_model.")
    if re.search(r"packing_position|\.head\.", name):
        return
    yield from ([(name, tensor)] if name.startswith("mlp_AR.") else _plain(name.removeprefix("model."), tensor, vision))


def _internvl(stored: str, tensor: Tensor, _vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name = f"vision_tower.{stored}" if stored.startswith("vision_model.") else stored
    if ".qkv." in name:
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("attn.qkv", f"self_attn.{part}_proj"), rows
    elif name.startswith(("vision_tower.", "mlp1.")):
        yield f"{name}.weight" if re.search(r"\.ls\d$|position_embedding$", name) else name, tensor


def _llava(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields a tensor unless features are taken before it."""
    if stored == "image_newline":
        yield "model.image_newline", tensor
    elif stored.startswith("multi_modal_projector."):
        _, layer, kind = stored.split(".")
        yield f"mm.{0 if layer == 'linear_1' else 2}.{kind}", tensor
    elif stored.startswith("vision_tower.") and f".layers.{vision['num_hidden_layers'] - 1}." not in stored:
        yield stored, tensor


def _lfm2(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    side = vision["patch_size"]
    if stored.endswith("patch_embedding.weight"):
        tensor = tensor.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)
    name = stored.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
    return _plain(name, tensor, vision)


def _minicpmv(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields also the positions in the resampler, which are computed."""
    name = stored.replace("_proj.", ".")
    if name.startswith("resampler.attn.in_proj_"):
        kind = name.removeprefix("resampler.attn.in_proj_")
        yield from ((f"resampler.attn.{part}.{kind}", rows) for part, rows in zip("qkv", tensor.chunk(3), strict=True))
    elif name == "resampler.proj":
        yield "resampler.proj.weight", tensor.mT
        yield "resampler.pos_embed_k", torch.zeros(4, len(tensor))
    elif name.startswith("resampler."):
        yield name, tensor
    else:
        yield from _plain(stored.replace("vpm.", "vision_tower.vision_model."), tensor, vision)


def _minicpmv4_6(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name = stored.removeprefix("model.")
    if name.startswith("merger."):
        layer, kind = name.split(".")[-2:]
        yield f"mm.{_MERGER[layer]}.{kind}", tensor
    elif ".vit_merger." in name:
        layer, kind = name.split(".")[-2:]
        yield f"v.vit_merger.{_VIT_MERGER[layer]}.{kind}", tensor
    else:
        yield from _plain(name.replace("vision_tower.", "vision_tower.vision_model."), tensor, vision)


_MERGER = {"pre_norm": "input_norm", "linear_1": "up", "linear_2": "down"}
_VIT_MERGER = {
    "layer_norm1": "ln1",
    "pre_norm": "ds_ln",
    "linear_1": "ds_ffn_up",
    "linear_2": "ds_ffn_down",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "out_proj": "attn_out",
}
"""Names that the package's table lacks."""


def _lighton_ocr(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name = stored.removeprefix("model.")
    name = name.replace("vision_encoder.", "vision_tower.").replace("vision_projection.", "multi_modal_projector.")
    heads = vision["num_attention_heads"] if name.endswith(("q_proj.weight", "k_proj.weight")) else 0
    yield from _plain(name, permuted(tensor, heads) if heads and name.startswith("vision_tower.") else tensor, vision)


def _pixtral(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields also the embedding of the token between rows."""
    yield from _lighton_ocr(stored, tensor, vision)
    if stored.endswith("embed_tokens.weight"):
        yield "v.token_embd.img_break", tensor[5]


def _whisper(name: str, tensor: Tensor, _audio: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    if name.startswith(("audio_tower.", "multi_modal_projector.")):
        is_bias = re.search(r"conv\d\.bias$", name)
        yield name.replace("multi_modal", "audio.multi_modal"), tensor[:, None] if is_bias else tensor


def _gemma4(stored: str, tensor: Tensor, vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    name, values = re.sub(r"\.linear(?=\.weight)", "", stored.removeprefix("model.")), tensor
    if tensor.dim() == 0:
        values = tensor[None]
    if name.endswith("patch_embedder.input_proj.weight"):
        side = vision["patch_size"]
        values = tensor.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)
    if name.endswith("per_dim_scale"):
        name, values = f"{name}.weight", torch.nn.functional.softplus(tensor)
    if name.endswith("depthwise_conv1d.weight"):
        values = tensor.squeeze(1)
    if name.startswith(("vision_tower.", "embed_vision.", "audio_tower.", "embed_audio.")):
        name = name.replace("audio_tower.", "conformer.").replace("vision_tower.encoder.", "vision_model.model.")
        name = f"{name}.weight" if name.endswith("embedding_table") else name
        yield re.sub(r"^(?=vision_tower|embed_)", "model.", name), values


_TENSORS = {
    "gemma4v": _gemma4,
    "glm4v": _glm4v,
    "paddleocr": _paddleocr_vl,
    "resampler": _minicpmv,
    "minicpmv4_6": _minicpmv4_6,
    "qwen2a": _whisper,
    "ultravox": _whisper,
    "pixtral": _pixtral,
    "lightonocr": _lighton_ocr,
    "idefics3": _plain,
    "gemma3": _plain,
    "internvl": _internvl,
    "mlp": _llava,
    "lfm2": _lfm2,
}
"""Each yields an encoder's tensor by a name that the package's table knows, or by that of files; nothing for a
decoder's. By `clip.projector_type`."""
