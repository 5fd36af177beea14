"""Pairs of GGUF files made of checkpoints of vision models: the decoder and its mmproj, as llama.cpp's converter writes
them."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints.gguf import add_tensor, write_gguf

Entries = Mapping[str, Any]
"""Metadata: a number, a text, a truth value or a list by each key; None where there is none."""

ARCHITECTURES = {
    "qwen2_vl": ("qwen2vl", "qwen2vl_merger"),
    "qwen2_5_vl": ("qwen2vl", "qwen2.5vl_merger"),
    "qwen3_vl": ("qwen3vl", "qwen3vl_merger"),
    "qwen3_vl_moe": ("qwen3vlmoe", "qwen3vl_merger"),
    "idefics3": ("llama", "idefics3"),
    "smolvlm": ("llama", "idefics3"),
    "gemma3": ("gemma3", "gemma3"),
}
"""`general.architecture` and `clip.projector_type`, by `model_type`."""


def write_pair(folder: Path, checkpoint: Path, kind: str = "F32", **changes: Any) -> Path:
    """Writes a decoder's file and `mmproj-model.gguf` beside it into a folder. Returns the former.

    Args:
        kind: type of the matrices.
        changes: see `write_mmproj`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_bytes())
    write_mmproj(folder / "mmproj-model.gguf", checkpoint, kind, **changes)
    return write_gguf(folder / "model.gguf", checkpoint, ARCHITECTURES[config["model_type"]][0], kind)


def write_rounded(folder: Path, checkpoint: Path, kind: str) -> Path:
    """Writes a checkpoint with the weights that its pair of files in this type has."""
    shutil.copytree(checkpoint, folder)
    file = folder / "model.safetensors"
    save_file({name: _rounded(tensor, kind) for name, tensor in load_file(file).items()}, file)
    return folder


def _rounded(tensor: Tensor, kind: str) -> Tensor:
    if tensor.dim() == 1 or kind == "F32":
        return tensor
    values = tensor.mT.contiguous() if tensor.dim() == 3 else tensor  # stacks of experts, inputs first
    number = GGMLQuantizationType["F16" if kind == "Q8_0" and values.shape[-1] % 32 else kind]
    found = torch.from_numpy(np.array(dequantize(quantize(values.numpy(), number), number), dtype=np.float32))
    return (found.mT if tensor.dim() == 3 else found).contiguous()


def write_mmproj(
    file: Path, checkpoint: Path, kind: str = "F32", *, swapped: bool = False, entries: Entries | None = None
) -> Path:
    """Writes the encoder of a checkpoint.

    Args:
        swapped: the products of MLPs have each other's names, as in old files.
        entries: metadata that differs from the checkpoint's.
    """
    config = json.loads((checkpoint / "config.json").read_bytes())
    writer, vision = GGUFWriter(file, "clip"), config["vision_config"]
    metadata = _metadata(config, json.loads((checkpoint / "preprocessor_config.json").read_bytes()))
    for key, value in {**metadata, **(entries or {})}.items():
        _add_entry(writer, key, value)
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, max(_depth(vision), 3))  # mm.2 counts too
    for name, tensor in _tensors(load_file(checkpoint / "model.safetensors"), vision):
        stored = name if name.startswith("v.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if swapped:
            stored = stored.replace("ffn_up", "ffn_x").replace("ffn_down", "ffn_up").replace("ffn_x", "ffn_down")
        converted = tensor.float() + 1 if stored == "mm.soft_emb_norm.weight" else tensor.float()
        add_tensor(writer, stored, converted.contiguous().numpy(), kind, np.random.default_rng(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _metadata(config: Mapping[str, Any], images: Mapping[str, Any]) -> dict[str, Any]:
    vision, text = config["vision_config"], config.get("text_config", config)
    metadata: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": ARCHITECTURES[config["model_type"]][1],
        "clip.vision.projection_dim": text["hidden_size"],
        "clip.vision.image_size": vision.get("image_size", 560),
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "clip.vision.feed_forward_length": vision.get("intermediate_size", 0),
        "clip.vision.block_count": _depth(vision),
        "clip.vision.attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": vision.get("layer_norm_eps", text["rms_norm_eps"]),
        "clip.vision.image_mean": images["image_mean"],
        "clip.vision.image_std": images["image_std"],
    }
    side = vision.get("image_size", 0) // vision["patch_size"]
    match metadata["clip.projector_type"]:
        case "idefics3":
            return metadata | {
                "general.name": "SmolVLM2 tiny" if config["model_type"] == "smolvlm" else None,
                "clip.use_gelu": True,
                "clip.vision.projector.scale_factor": config["scale_factor"],
                "clip.vision.preproc_image_size": images["size"]["longest_edge"],
            }
        case "gemma3":
            factor = side // math.isqrt(config["mm_tokens_per_image"])
            return metadata | {"clip.use_gelu": True, "clip.vision.projector.scale_factor": factor}
        case _:
            return metadata | _qwen_metadata(config, images)


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
    if (blocks := vision.get("deepstack_visual_indexes")) is not None:
        metadata |= {
            "clip.use_gelu": True,
            "clip.vision.spatial_merge_size": vision["spatial_merge_size"],
            "clip.vision.is_deepstack_layers": [block in blocks for block in range(vision["depth"])],
        }
    return metadata


def _depth(vision: Mapping[str, Any]) -> int:
    return vision.get("depth") or vision["num_hidden_layers"]


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


def _tensors(weights: Mapping[str, Tensor], vision: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yields the encoder's tensors by names that the package's table knows, or by those of files."""
    is_third = "deepstack_visual_indexes" in vision
    for stored, tensor in weights.items():
        if any(part in stored for part in ("vision_model.", "connector.", "vision_tower.", "multi_modal_projector.")):
            yield stored.replace("projection_weight", "projection.weight"), tensor
        name = stored.removeprefix("model.")
        if not name.startswith("visual."):
            continue
        if name == "visual.patch_embed.proj.weight":
            yield from ((f"v.patch_embd.weight{suffix}", tensor[:, :, frame]) for frame, suffix in ((0, ""), (1, ".1")))
        elif ".qkv." in name and not is_third:
            yield from ((name.replace("qkv", part), rows) for part, rows in zip("qkv", tensor.chunk(3), strict=True))
        elif name.startswith("visual.deepstack_merger_list."):
            _, _, index, rest = name.split(".", 3)
            yield f"model.visual.deepstack_merger_list.{vision['deepstack_visual_indexes'][int(index)]}.{rest}", tensor
        else:
            for ours, known in (("merger.norm", "merger.ln_q"), ("merger.linear_fc1", "merger.mlp.0")):
                name = name.replace(ours, known)
            yield name.replace("merger.linear_fc2", "merger.mlp.2"), tensor
