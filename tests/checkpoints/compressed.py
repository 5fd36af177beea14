"""Writes checkpoints in the formats of compressed-tensors, together with their dequantized equivalents.

Written from the definitions of the formats, without code of the engine. What the package itself decompresses was
compared once, for all of `FORMATS`: the same bfloat16 values, bit for bit (version 0.20.1; 0.10.2 for activation order,
which the package has no longer).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoints.quantized import Tensors, pack_rows, quantize_tensors, write


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedFormat:
    """How matrices of integers are stored. Scales are bfloat16, as those of published checkpoints."""

    form: str = "pack-quantized"
    bits: int = 4
    group_size: int | None = 32
    """None: one group for all inputs."""
    symmetric: bool = True
    activation_order: bool = False

    def group(self, targets: Sequence[str]) -> dict[str, Any]:
        """Returns a config group as llm-compressor writes it."""
        weights: dict[str, Any] = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": "channel" if self.group_size is None else "group",
            "group_size": self.group_size,
            "dynamic": False,
            "actorder": "group" if self.activation_order else None,
        }
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        return {
            "targets": list(targets),
            "weights": weights,
            "input_activations": activations if self.form == "int-quantized" else None,
            "output_activations": None,
            "format": self.form,
        }


INT8 = CompressedFormat(form="int-quantized", bits=8, group_size=None)
FORMATS = (
    CompressedFormat(),
    CompressedFormat(group_size=64, symmetric=False),
    CompressedFormat(group_size=None, symmetric=False),
    CompressedFormat(activation_order=True),
    CompressedFormat(bits=8, symmetric=False),
    CompressedFormat(bits=8, group_size=None),
    INT8,
    CompressedFormat(form="int-quantized", bits=8, group_size=None, symmetric=False),
)


def compressed_config(formats: Mapping[str, CompressedFormat], ignore: Sequence[str] = ()) -> dict[str, Any]:
    """Returns `quantization_config` as llm-compressor writes it, with a config group for each target."""
    forms = {each.form for each in formats.values()}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": forms.pop() if len(forms) == 1 else "mixed-precision",
        "config_groups": {f"group_{i}": each.group([target]) for i, (target, each) in enumerate(formats.items())},
        "ignore": ["lm_head", "re:.*visual.*", *ignore],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
    }


def compress_checkpoint(
    plain: Path, folder: Path, formats: Mapping[str, CompressedFormat], ignore: Sequence[str] = ()
) -> tuple[Path, Path]:
    """Quantizes the decoder's matrices of a checkpoint with float32 weights.

    Args:
        formats: by target; the last that a matrix matches is its format.
        ignore: expressions of what is not quantized.

    Returns:
        The quantized checkpoint, and an unquantized one with the dequantized weights.
    """

    def quantize(stem: str, matrix: Tensor) -> tuple[Tensors, Tensor] | None:
        form = _format_of(stem, formats, ignore)
        return None if form is None else compress(matrix, form)

    stored, dequantized = quantize_tensors(load_file(plain / "model.safetensors"), quantize)
    changes = {"quantization_config": compressed_config(formats, ignore), "torch_dtype": "bfloat16"}
    return write(plain, folder / "quantized", stored, changes), write(plain, folder / "dequantized", dequantized, {})


def _format_of(stem: str, formats: Mapping[str, CompressedFormat], ignore: Sequence[str]) -> CompressedFormat | None:
    if any(re.match(each.removeprefix("re:"), stem) for each in ignore):
        return None
    matching = [form for target, form in formats.items() if target == "Linear" or re.match(target[3:], stem)]
    return matching[-1] if matching else None


def compress(weight: Tensor, form: CompressedFormat) -> tuple[Tensors, Tensor]:
    """Returns the stored tensors of a matrix, and the dequantized matrix in float32."""
    inputs, half = weight.shape[1], 2 ** (form.bits - 1)
    index = torch.arange(inputs) // (form.group_size or inputs)
    if form.activation_order:  # the same for matrices with the same input
        index = index[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    groups = torch.stack([weight[:, index == group] for group in range(int(index.max()) + 1)], dim=1)
    low, high = groups.amin(dim=2).clamp(max=0), groups.amax(dim=2).clamp(min=0)
    span = 2 * torch.maximum(high, -low) if form.symmetric else high - low
    scale = (span / (2 * half - 1)).to(torch.bfloat16)
    zero = torch.zeros_like(low) if form.symmetric else (-low / scale.float()).round() - half
    zero = zero.clamp(-half, half - 1).to(torch.int8)
    values = ((weight / scale.float()[:, index]).round() + zero[:, index]).clamp(-half, half - 1).to(torch.int8)
    dequantized = (values.float() - zero[:, index]) * scale.float()[:, index]
    parts: Tensors = {"weight_scale": scale}
    if form.form == "int-quantized":
        parts |= {"weight": values} | ({} if form.symmetric else {"weight_zero_point": zero})
        return parts, dequantized
    unsigned = (values.int() + half).numpy().astype(np.int64)
    parts["weight_packed"] = torch.from_numpy(pack_rows(unsigned.T, form.bits).T.copy())
    parts["weight_shape"] = torch.tensor(weight.shape)
    if not form.symmetric:
        parts["weight_zero_point"] = torch.from_numpy(pack_rows((zero.int() + half).numpy(), form.bits))
    if form.activation_order:
        parts["weight_g_idx"] = index.int()
    return parts, dequantized
