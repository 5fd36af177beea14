"""Quantization schemes of checkpoints, parsed from `quantization_config` in `config.json`. Independent of torch.

Every variant that the engine would compute incorrectly is rejected here, before weights are read. Which matrices are
quantized follows from the checkpoint's tensors, not from this configuration.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from glimpse.engine.errors import CheckpointError

PACKED_INPUTS = 32
"""Group sizes, and the number of a linear's inputs, are multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormat:
    """How a matrix of unsigned integers in groups of inputs is stored."""

    bits: int
    """4 or 8."""
    group_size: int
    """Inputs that share a scale."""
    has_minimum: bool
    """Whether a group has a minimum rather than a zero point."""
    scale: str
    """The narrowest type that holds scales and minima exactly: float16 or float32."""

    def __str__(self) -> str:
        return f"as int{self.bits} in groups of {self.group_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufQuantization:
    """Unsigned integers in groups, in the type of each matrix (`GGUF_FORMATS`)."""

    types: Mapping[str, str]
    """By the name of a matrix without `.weight` in the decoder's own checkpoint; the experts of a layer share one."""

    @property
    def kind(self) -> Literal["int4", "int8"]:
        """The value of `--quantization` that names weights of this type: that of the smallest."""
        return "int4" if any(GGUF_FORMATS[each].bits == 4 for each in self.types.values()) else "int8"

    def __str__(self) -> str:
        return f"gguf {', '.join(sorted(set(self.types.values())))}"

    def type_of(self, name: str) -> str | None:
        """Returns the type of a matrix, or of an expert's; None if it is not quantized."""
        return self.types.get(_EXPERT.sub(".experts.", name.removeprefix(_DECODER)))

    def format_of(self, names: Collection[str]) -> GroupFormat | None:
        """Returns a format that holds the values of all these matrices exactly; None if one is not quantized.

        8 bits hold those of 4, a group is divided into equal ones, and a zero point times the scale is a minimum.
        """
        formats = {GGUF_FORMATS[each] for name in names if (each := self.type_of(name)) is not None}
        if any(self.type_of(name) is None for name in names):
            return None
        if len(formats) == 1:
            return formats.pop()
        return GroupFormat(
            bits=max(each.bits for each in formats),
            group_size=min(each.group_size for each in formats),
            has_minimum=any(each.has_minimum for each in formats),
            scale="float32",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuantization:
    """Unsigned integers with a scale and a zero point for each output feature and group of inputs."""

    method: Literal["awq", "gptq"]
    bits: Literal[4, 8]
    group_size: int | None
    """Inputs that share a scale; None for all of them."""
    zero_points_minus_one: bool
    """Whether zero points are stored minus one (GPTQ version 1)."""
    desc_act: bool
    """Whether `g_idx` assigns inputs to groups (activation order); otherwise groups are consecutive inputs."""

    @property
    def kind(self) -> Literal["int4", "int8"]:
        """The value of `--quantization` that names weights of this type."""
        return "int4" if self.bits == 4 else "int8"

    def __str__(self) -> str:
        return f"{self.method} {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Quantization:
    """e4m3 weights with a scale for each output feature; activations are quantized dynamically for each token."""

    @property
    def kind(self) -> Literal["fp8"]:
        """The value of `--quantization` that names weights of this type."""
        return "fp8"

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Blocks:
    """e4m3 weights with a scale for each block of a matrix. They are dequantized when they are loaded, so a checkpoint
    with them is not a quantized one in what follows."""

    rows: int
    """Output features of a block."""
    columns: int
    """Inputs of a block."""


CheckpointQuantization: TypeAlias = GroupQuantization | GgufQuantization | Fp8Quantization

GGUF_FORMATS: Mapping[str, GroupFormat] = {
    name: GroupFormat(bits=bits, group_size=group_size, has_minimum=has_minimum, scale=scale)
    for name, bits, group_size, has_minimum, scale in (
        ("Q4_0", 4, 32, False, "float16"),
        ("Q4_1", 4, 32, True, "float16"),
        ("Q5_0", 8, 32, False, "float16"),
        ("Q5_1", 8, 32, True, "float16"),
        ("Q8_0", 8, 32, False, "float16"),
        ("Q4_K", 4, 32, True, "float32"),
        ("Q5_K", 8, 32, True, "float32"),
        ("Q6_K", 8, 16, False, "float32"),
        ("IQ4_NL", 8, 32, False, "float16"),
        ("IQ4_XS", 8, 32, False, "float32"),
    )
}
"""The exact format of each of GGUF's types that linears store."""


def checkpoint_quantization(config: Mapping[str, Any]) -> CheckpointQuantization | None:
    """Parses `quantization_config` of a `config.json`; returns None if there is none, or for `checkpoint_blocks`.

    Raises:
        CheckpointError: the weights are quantized in a way that is not supported.
    """
    stored: Mapping[str, Any] | None = config.get("quantization_config")
    if not stored or stored.get("quant_method") == _BLOCKS:
        return None
    method = str(stored.get("quant_method"))
    if method not in _METHODS:
        expected = ", ".join((*_METHODS, _BLOCKS))
        raise CheckpointError(f"'quantization_config.quant_method': expected one of {expected}, got {method}")
    return _METHODS[method](stored)


def checkpoint_blocks(config: Mapping[str, Any]) -> Fp8Blocks | None:
    """Parses `quantization_config` of a `config.json` whose weights are in FP8 blocks; returns None for all others.

    Raises:
        CheckpointError: the weights are quantized in a way that is not supported.
    """
    stored: Mapping[str, Any] = config.get("quantization_config") or {}
    if stored.get("quant_method") != _BLOCKS:
        return None
    _require(_BLOCKS, "fmt", stored.get("fmt", "e4m3"), {"e4m3"})
    _require(_BLOCKS, "activation_scheme", stored.get("activation_scheme", "dynamic"), {"dynamic"})
    match stored.get("weight_block_size"):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return Fp8Blocks(rows=rows, columns=columns)
        case other:
            raise CheckpointError(
                f"'quantization_config.weight_block_size': expected two sizes for {_BLOCKS}, got {other}"
            )


def _awq(stored: Mapping[str, Any]) -> GroupQuantization:
    """Parses AutoAWQ's fields (awq/models/_config.py)."""
    version = stored.get("version") or stored.get("format") or "gemm"
    _require("awq", "version", str(version).lower(), {"gemm"})
    _require("awq", "zero_point", stored.get("zero_point", True), {True})
    _require("awq", "bits", stored["bits"], {4})
    return GroupQuantization(
        method="awq", bits=4, group_size=_group_size("awq", stored), zero_points_minus_one=False, desc_act=False
    )


def _gptq(stored: Mapping[str, Any]) -> GroupQuantization:
    """Parses the fields of AutoGPTQ and GPTQModel (gptqmodel/quantization/config.py)."""
    checkpoint_format = stored.get("checkpoint_format") or stored.get("format") or "gptq"
    _require("gptq", "checkpoint_format", checkpoint_format, {"gptq", "gptq_v2"})
    _require("gptq", "bits", stored["bits"], {4, 8})
    _require("gptq", "pack_dtype", stored.get("pack_dtype") or "int32", {"int32"})
    for field in ("is_marlin_format", "lm_head", "dynamic"):
        _require("gptq", field, bool(stored.get(field)), {False})
    return GroupQuantization(
        method="gptq",
        bits=stored["bits"],
        group_size=_group_size("gptq", stored),
        zero_points_minus_one=checkpoint_format == "gptq",
        desc_act=bool(stored.get("desc_act", False)),
    )


def _gguf(stored: Mapping[str, Any]) -> GgufQuantization:
    """Parses what `checkpoint.gguf.config` writes."""
    return GgufQuantization(types=stored["types"])


def _compressed_tensors(stored: Mapping[str, Any]) -> Fp8Quantization:
    """Parses the fields of compressed-tensors (compressed_tensors/quantization/quant_config.py)."""
    method = "compressed-tensors"
    _require(method, "format", stored.get("format"), {"float-quantized"})
    for field in ("kv_cache_scheme", "sparsity_config"):
        _require(method, field, bool(stored.get(field)), {False})
    for name, group in stored["config_groups"].items():
        weights, activations = group["weights"], group.get("input_activations") or {}
        for path, scheme, strategies in (
            (f"config_groups.{name}.weights", weights, {"channel"}),
            (f"config_groups.{name}.input_activations", activations, {"token"}),
        ):
            _require(method, f"{path}.num_bits", scheme.get("num_bits"), {8})
            _require(method, f"{path}.type", scheme.get("type"), {"float"})
            _require(method, f"{path}.strategy", scheme.get("strategy"), strategies)
        _require(method, f"config_groups.{name}.input_activations.dynamic", activations.get("dynamic"), {True})
    return Fp8Quantization()


_BLOCKS = "fp8"
"""Name of FP8 in blocks as a method (transformers, quantizers/quantizer_finegrained_fp8.py)."""

_DECODER = "language_model."
"""What checkpoints of models with an encoder put before the names of a decoder's tensors."""
_EXPERT = re.compile(r"\.experts\.\d+\.")

_METHODS: Mapping[str, Callable[[Mapping[str, Any]], CheckpointQuantization]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "gguf": _gguf,
}


def _group_size(method: str, stored: Mapping[str, Any]) -> int | None:
    size = stored["group_size"]
    if size == -1:
        return None
    if size <= 0 or size % PACKED_INPUTS:
        raise CheckpointError(
            f"'quantization_config.group_size': expected -1 or a multiple of {PACKED_INPUTS} for {method}, got {size}"
        )
    return size


def _require(method: str, field: str, value: object, supported: Collection[object]) -> None:
    if value not in supported:
        names = " or ".join(sorted(map(str, supported)))
        raise CheckpointError(f"'quantization_config.{field}': expected {names} for {method}, got {value}")
