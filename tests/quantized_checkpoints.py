"""Quantized checkpoints in the forms in which people publish them, and plain ones of what their weights stand for.

Written from the formats' definitions, a field at a time, and sharing nothing with the engine: AWQ's words hold eight
output features, GPTQ's several inputs; both hold zero points by output features, GPTQ's first version less one.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Array = npt.NDArray[Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How a matrix is quantized and stored."""

    method: str
    bits: int = 4
    group_size: int = 32
    version: int = 1
    """Of GPTQ's format: the first stores zero points less one."""
    desc_act: bool = False

    def config(self) -> dict[str, Any]:
        """`quantization_config`, as the libraries write it."""
        if self.method == "fp8":
            return fp8_config()
        common = {"bits": self.bits, "group_size": self.group_size, "quant_method": self.method}
        if self.method == "awq":
            return common | {"version": "gemm", "zero_point": True, "modules_to_not_convert": ["visual"]}
        scheme = "gptq" if self.version == 1 else "gptq_v2"
        return common | {"checkpoint_format": scheme, "desc_act": self.desc_act, "sym": False, "true_sequential": True}


def fp8_config() -> dict[str, Any]:
    """As llm-compressor writes it."""
    common: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": "channel", "dynamic": False},
        "input_activations": common | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:visual.*"],
        "kv_cache_scheme": None,
    }


def publish(plain: Path, folder: Path, scheme: Published) -> tuple[Path, Path]:
    """Quantizes the decoder's matrices of a checkpoint with float32 weights.

    Returns:
        The quantized checkpoint, and a plain one with the weights that it stands for.
    """
    tensors = load_file(plain / "model.safetensors")
    stored: Tensors = {}
    meant: Tensors = {}
    random = np.random.default_rng(0)
    for name, tensor in tensors.items():
        if ".layers." not in name or not name.endswith("_proj.weight"):
            stored[name] = meant[name] = tensor
            continue
        stem = name.removesuffix(".weight")
        parts, meant[name] = quantize(tensor, scheme, random)
        stored |= {f"{stem}.{part}": value for part, value in parts.items()}
        if scheme.method == "gptq" and f"{stem}.bias" not in tensors:
            stored[f"{stem}.bias"] = torch.zeros(len(tensor), dtype=torch.float16)
    dtype = "float32" if scheme.method == "fp8" else "float16"
    changes = {"quantization_config": scheme.config(), "torch_dtype": dtype}
    return write(plain, folder / "quantized", stored, changes), write(plain, folder / "meant", meant, {})


def write(plain: Path, path: Path, tensors: Mapping[str, Tensor], changes: Mapping[str, Any]) -> Path:
    """A copy of a checkpoint with other tensors and some other fields in its `config.json`."""
    shutil.copytree(plain, path)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def quantize(weight: Tensor, scheme: Published, random: np.random.Generator) -> tuple[Tensors, Tensor]:
    """What is stored of a matrix, and the matrix that it stands for."""
    if scheme.method == "fp8":
        scale = weight.abs().amax(dim=1, keepdim=True) / 448
        values = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale": scale}, values.float() * scale
    inputs = weight.shape[1]
    group_of = np.arange(inputs) // (inputs if scheme.group_size == -1 else scheme.group_size)
    if scheme.desc_act:
        # Matrices with the same input have the same order, which the libraries derive from that input.
        group_of = np.random.default_rng(inputs).permutation(group_of)
    steps, zeros, scales = round_to_nearest(weight.numpy().T, group_of, scheme.bits)
    meant = (steps.astype(np.int64) - zeros[group_of]) * scales[group_of].astype(np.float64)
    packed = awq_parts(steps, zeros) if scheme.method == "awq" else gptq_parts(steps, zeros, scheme)
    if scheme.method == "gptq":
        packed["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
    return packed | {"scales": torch.from_numpy(scales)}, torch.from_numpy(meant.T.astype(np.float32))


def round_to_nearest(weight: Array, group_of: Array, bits: int) -> tuple[Array, Array, Array]:
    """[in, out] → whole numbers [in, out], zero points and float16 scales [groups, out]."""
    groups = range(group_of.max() + 1)
    low = np.stack([weight[group_of == group].min(axis=0) for group in groups])
    high = np.stack([weight[group_of == group].max(axis=0) for group in groups])
    top = 2**bits - 1
    scales = ((high - low) / top).astype(np.float16)
    zeros = np.clip(np.round(-low / scales), 1, top).astype(np.int64)
    steps = np.clip(np.round(weight / scales[group_of]) + zeros[group_of], 0, top).astype(np.int64)
    return steps, zeros, scales


def awq_parts(steps: Array, zeros: Array) -> Tensors:
    """AutoAWQ's version "gemm"."""

    def pack(fields: Array) -> Tensor:
        words = np.zeros((fields.shape[0], fields.shape[1] // 8), np.uint32)
        for place, feature in enumerate(AWQ_ORDER):
            words |= fields[:, feature::8].astype(np.uint32) << np.uint32(4 * place)
        return torch.from_numpy(words.view(np.int32))

    return {"qweight": pack(steps), "qzeros": pack(zeros)}


def gptq_parts(steps: Array, zeros: Array, scheme: Published) -> Tensors:
    """AutoGPTQ's format, of either version."""

    def pack(fields: Array) -> Array:
        """Along the rows."""
        a_word = 32 // scheme.bits
        words = np.zeros((fields.shape[0] // a_word, fields.shape[1]), np.uint32)
        for place in range(a_word):
            words |= fields[place::a_word].astype(np.uint32) << np.uint32(scheme.bits * place)
        return words.view(np.int32)

    stored_zeros = zeros - 1 if scheme.version == 1 else zeros
    return {
        "qweight": torch.from_numpy(pack(steps)),
        "qzeros": torch.from_numpy(np.ascontiguousarray(pack(stored_zeros.T).T)),
    }
