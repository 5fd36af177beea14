"""How a checkpoint's own weights are quantized, as its `config.json` says. Knows the words of the published formats.

Everything that would be computed wrongly is refused here, by name, before a weight is read. Which of a model's matrices
are quantized is not asked here: the tensors themselves say it. Knows no torch.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from glimpse.engine.errors import CheckpointError

PACKED_INPUTS = 32
"""Groups of inputs, and a linear's inputs, come in multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuantization:
    """Whole numbers from 0 on, with a scale and a zero point for each output feature and group of inputs."""

    method: Literal["awq", "gptq"]
    bits: Literal[4, 8]
    group_size: int | None
    """Inputs that share a scale; None: all of them."""
    zero_points_minus_one: bool
    """Zero points are stored less one."""
    reordered: bool
    """Which inputs form a group, `g_idx` says; else those that are next to each other."""

    @property
    def kind(self) -> Literal["int4", "int8"]:
        """What `--quantization` calls weights like these."""
        return "int4" if self.bits == 4 else "int8"

    def __str__(self) -> str:
        return f"{self.method} {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Quantization:
    """Numbers of the type e4m3 with a scale for each output feature; activations are rounded as they come."""

    @property
    def kind(self) -> Literal["fp8"]:
        """What `--quantization` calls weights like these."""
        return "fp8"

    def __str__(self) -> str:
        return self.kind


CheckpointQuantization: TypeAlias = GroupQuantization | Fp8Quantization


def checkpoint_quantization(config: Mapping[str, Any]) -> CheckpointQuantization | None:
    """What `quantization_config` in a `config.json` says; None if it is not there.

    Raises:
        CheckpointError: the weights are quantized in a way that is not supported.
    """
    stored: Mapping[str, Any] | None = config.get("quantization_config")
    if not stored:
        return None
    method = str(stored.get("quant_method"))
    if method not in _METHODS:
        raise CheckpointError(
            f"the checkpoint is quantized by {method}, which is not supported; supported: {', '.join(_METHODS)}"
        )
    return _METHODS[method](stored)


def _awq(stored: Mapping[str, Any]) -> GroupQuantization:
    """AutoAWQ's words (awq/models/_config.py)."""
    version = stored.get("version") or stored.get("format") or "gemm"
    _require("awq", "version", str(version).lower(), {"gemm"})
    _require("awq", "zero_point", stored.get("zero_point", True), {True})
    _require("awq", "bits", stored["bits"], {4})
    return GroupQuantization(
        method="awq", bits=4, group_size=_group_size("awq", stored), zero_points_minus_one=False, reordered=False
    )


def _gptq(stored: Mapping[str, Any]) -> GroupQuantization:
    """AutoGPTQ's and GPTQModel's words (gptqmodel/quantization/config.py)."""
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
        reordered=bool(stored.get("desc_act", False)),
    )


def _compressed_tensors(stored: Mapping[str, Any]) -> Fp8Quantization:
    """The words of compressed-tensors (compressed_tensors/quantization/quant_config.py)."""
    method = "compressed-tensors"
    _require(method, "format", stored.get("format"), {"float-quantized"})
    for field in ("kv_cache_scheme", "sparsity_config"):
        _require(method, field, bool(stored.get(field)), {False})
    for name, group in stored["config_groups"].items():
        weights, activations = group["weights"], group.get("input_activations") or {}
        for of, scheme, strategies in (
            (f"{name} weights", weights, {"channel"}),
            (f"{name} input_activations", activations, {"token"}),
        ):
            _require(method, f"{of} num_bits", scheme.get("num_bits"), {8})
            _require(method, f"{of} type", scheme.get("type"), {"float"})
            _require(method, f"{of} strategy", scheme.get("strategy"), strategies)
        _require(method, f"{name} input_activations dynamic", activations.get("dynamic"), {True})
    return Fp8Quantization()


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], CheckpointQuantization]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
}


def _group_size(method: str, stored: Mapping[str, Any]) -> int | None:
    size = stored["group_size"]
    if size == -1:
        return None
    if size <= 0 or size % PACKED_INPUTS:
        raise CheckpointError(f"{method} with group_size {size} is not supported; supported: multiples of 32, and -1")
    return size


def _require(method: str, field: str, value: object, supported: Collection[object]) -> None:
    if value not in supported:
        names = ", ".join(sorted(map(str, supported)))
        raise CheckpointError(f"{method} with {field} {value} is not supported; supported: {names}")
