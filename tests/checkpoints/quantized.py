"""Writes checkpoints in the published quantized formats, together with their dequantized equivalents.

Written from the definitions of the formats, without code of the engine. AWQ packs eight output features into a 32-bit
word, GPTQ several inputs; both pack zero points by output feature, and version 1 of GPTQ stores them minus one.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8_BLOCK = (32, 48)
"""Outputs and inputs of a block of FP8 weights; blocks at the edges of matrices are smaller."""

QUANTIZED = ("_proj.weight", ".in_proj_qkv.weight", ".in_proj_z.weight")
"""Ends of the names of quantized matrices in decoder layers."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Array = npt.NDArray[Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How matrices are quantized and stored."""

    method: str
    bits: int = 4
    group_size: int = 32
    version: int = 1
    """Version of the GPTQ format: version 1 stores zero points minus one."""
    desc_act: bool = False

    def config(self) -> dict[str, Any]:
        """Returns `quantization_config` as the libraries write it."""
        if self.method == "fp8":
            return fp8_config()
        if self.method == "fp8 blocks":
            return {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": list(FP8_BLOCK),
                "modules_to_not_convert": ["lm_head"],
            }
        common = {"bits": self.bits, "group_size": self.group_size, "quant_method": self.method}
        if self.method == "awq":
            return common | {"version": "gemm", "zero_point": True, "modules_to_not_convert": ["visual"]}
        checkpoint_format = "gptq" if self.version == 1 else "gptq_v2"
        return common | {
            "checkpoint_format": checkpoint_format,
            "desc_act": self.desc_act,
            "sym": False,
            "true_sequential": True,
        }


def fp8_config() -> dict[str, Any]:
    """Returns `quantization_config` as llm-compressor writes it."""
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


def quantize_checkpoint(
    plain: Path, folder: Path, weight_format: WeightFormat, *, ignore: str = "$"
) -> tuple[Path, Path]:
    """Quantizes the decoder's matrices of a checkpoint with float32 weights.

    Args:
        ignore: expression of the names of modules that are not quantized.

    Returns:
        The quantized checkpoint, and an unquantized one with the dequantized weights.
    """
    tensors = load_file(plain / "model.safetensors")
    random = np.random.default_rng(0)

    def quantize_matrix(stem: str, matrix: Tensor) -> tuple[Tensors, Tensor] | None:
        if re.match(ignore, stem):
            return None
        parts, dequantized = quantize(matrix, weight_format, random)
        if weight_format.method == "gptq" and f"{stem}.bias" not in tensors:
            parts["bias"] = torch.zeros(len(matrix), dtype=torch.float16)
        return parts, dequantized

    stored, dequantized = quantize_tensors(tensors, quantize_matrix)
    dtype = "float32" if weight_format.method.startswith("fp8") else "float16"
    changes = {"quantization_config": weight_format.config(), "torch_dtype": dtype}
    return write(plain, folder / "quantized", stored, changes), write(plain, folder / "dequantized", dequantized, {})


def quantize_tensors(
    tensors: Tensors, quantize: Callable[[str, Tensor], tuple[Tensors, Tensor] | None]
) -> tuple[Tensors, Tensors]:
    """Quantizes the decoder's matrices, those of experts apart.

    Args:
        quantize: returns what `quantize` does for a module and its matrix; None if it is not quantized.

    Returns:
        The stored tensors, and the dequantized ones.
    """
    stored: Tensors = {}
    dequantized: Tensors = {}
    for name, tensor in tensors.items():
        matrices = list(_matrices(name, tensor))
        restored: list[Tensor] = []
        for stem, matrix in matrices:
            parts, values = quantize(stem, matrix) or ({"weight": matrix}, matrix)
            stored |= {f"{stem}.{part}": value for part, value in parts.items()}
            restored.append(values)
        if not matrices:
            stored[name] = tensor
        dequantized[name] = _joined(tensor, restored) if matrices else tensor
    return stored, dequantized


def _matrices(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the matrices of a decoder's tensor, [out, in], with the names of their modules, as published."""
    layer, _, stack = name.rpartition(".experts.")
    if layer and tensor.dim() == 3:
        # An expert's inner size is larger than its width.
        is_outputs_first = (tensor.shape[1] > tensor.shape[2]) == (stack == "gate_up_proj")
        outputs_first = tensor if is_outputs_first else tensor.mT
        for expert, matrices in enumerate(outputs_first):
            parts = ("gate_proj", "up_proj") if stack == "gate_up_proj" else ("down_proj",)
            for part, matrix in zip(parts, matrices.chunk(len(parts)), strict=True):
                yield f"{layer}.experts.{expert}.{part}", matrix.contiguous()
    elif ".layers." in name and name.endswith(QUANTIZED):
        yield name.removesuffix(".weight"), tensor


def _joined(tensor: Tensor, restored: Sequence[Tensor]) -> Tensor:
    """Reverses `_matrices`."""
    if tensor.dim() == 2:
        return restored[0]
    stack = torch.cat(list(restored)).unflatten(0, (len(tensor), -1))
    return stack if stack.shape == tensor.shape else stack.mT.contiguous()


def write(plain: Path, path: Path, tensors: Mapping[str, Tensor], changes: Mapping[str, Any]) -> Path:
    """Copies a checkpoint with other tensors and with changes in its `config.json`."""
    shutil.copytree(plain, path)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps(config))
    return path


def quantize(weight: Tensor, weight_format: WeightFormat, random: np.random.Generator) -> tuple[Tensors, Tensor]:
    """Returns the stored tensors of a matrix, and the dequantized matrix."""
    if weight_format.method == "fp8":
        scale = weight.abs().amax(dim=1, keepdim=True) / 448
        rounded = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": rounded, "weight_scale": scale}, rounded.float() * scale
    if weight_format.method == "fp8 blocks":
        return quantize_blocks(weight)
    inputs = weight.shape[1]
    group_index = np.arange(inputs) // (inputs if weight_format.group_size == -1 else weight_format.group_size)
    if weight_format.desc_act:
        # Matrices with the same input have the same order, because the libraries derive it from the input.
        group_index = np.random.default_rng(inputs).permutation(group_index)
    values, zeros, scales = round_to_nearest(weight.numpy().T, group_index, weight_format.bits)
    dequantized = (values.astype(np.int64) - zeros[group_index]) * scales[group_index].astype(np.float64)
    packed = awq_tensors(values, zeros) if weight_format.method == "awq" else gptq_tensors(values, zeros, weight_format)
    if weight_format.method == "gptq":
        packed["g_idx"] = torch.from_numpy(group_index.astype(np.int32))
    return packed | {"scales": torch.from_numpy(scales)}, torch.from_numpy(dequantized.T.astype(np.float32))


def quantize_blocks(weight: Tensor) -> tuple[Tensors, Tensor]:
    """Does what `quantize` does, with a scale for each block."""
    blocks = [rows.split(FP8_BLOCK[1], dim=1) for rows in weight.split(FP8_BLOCK[0])]
    scales = torch.tensor([[block.abs().max().item() / 448 for block in row] for row in blocks])
    rounded = [
        [(block / scale).to(torch.float8_e4m3fn) for block, scale in zip(row, row_scales, strict=True)]
        for row, row_scales in zip(blocks, scales, strict=True)
    ]
    dequantized = [
        torch.cat([block.float() * scale for block, scale in zip(row, row_scales, strict=True)], dim=1)
        for row, row_scales in zip(rounded, scales, strict=True)
    ]
    values = torch.cat([torch.cat([block.view(torch.uint8) for block in row], dim=1) for row in rounded])
    return {"weight": values.view(torch.float8_e4m3fn), "weight_scale_inv": scales}, torch.cat(dequantized)


def round_to_nearest(weight: Array, group_index: Array, bits: int) -> tuple[Array, Array, Array]:
    """Quantizes [in, out] to integers [in, out], zero points and float16 scales [groups, out]."""
    groups = range(group_index.max() + 1)
    low = np.stack([weight[group_index == group].min(axis=0) for group in groups])
    high = np.stack([weight[group_index == group].max(axis=0) for group in groups])
    top = 2**bits - 1
    scales = ((high - low) / top).astype(np.float16)
    zeros = np.clip(np.round(-low / scales), 1, top).astype(np.int64)
    values = np.clip(np.round(weight / scales[group_index]) + zeros[group_index], 0, top).astype(np.int64)
    return values, zeros, scales


def awq_tensors(values: Array, zeros: Array) -> Tensors:
    """Packs in AutoAWQ's version "gemm"."""

    def pack(fields: Array) -> Tensor:
        words = np.zeros((fields.shape[0], fields.shape[1] // 8), np.uint32)
        for place, feature in enumerate(AWQ_ORDER):
            words |= fields[:, feature::8].astype(np.uint32) << np.uint32(4 * place)
        return torch.from_numpy(words.view(np.int32))

    return {"qweight": pack(values), "qzeros": pack(zeros)}


def gptq_tensors(values: Array, zeros: Array, weight_format: WeightFormat) -> Tensors:
    """Packs in AutoGPTQ's format of either version."""

    stored_zeros = zeros - 1 if weight_format.version == 1 else zeros
    return {
        "qweight": torch.from_numpy(pack_rows(values, weight_format.bits)),
        "qzeros": torch.from_numpy(np.ascontiguousarray(pack_rows(stored_zeros.T, weight_format.bits).T)),
    }


def pack_rows(fields: Array, bits: int) -> Array:
    """Packs consecutive rows into 32-bit words, the first into the lowest bits."""
    fields_per_word = 32 // bits
    words = np.zeros((fields.shape[0] // fields_per_word, fields.shape[1]), np.uint32)
    for place in range(fields_per_word):
        words |= fields[place::fields_per_word].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)
