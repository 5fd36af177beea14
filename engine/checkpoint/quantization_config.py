"""Parses `quantization_config` in `config.json` to quantization schemes.

Every variant that the engine would compute incorrectly is rejected here, before weights are read.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from glimpse.engine.checkpoint.quantization import (
    PACKED_INPUTS,
    CheckpointQuantization,
    CompressedGroup,
    CompressedQuantization,
    Fp8Blocks,
    GgufQuantization,
    GroupQuantization,
    MatrixScheme,
    Modules,
)
from glimpse.engine.errors import CheckpointError


def checkpoint_quantization(config: Mapping[str, Any]) -> CheckpointQuantization | None:
    """Parses `quantization_config` of a `config.json`; returns None if there is none, or for `checkpoint_blocks`.

    Raises:
        CheckpointError: the weights are quantized in a way that is not supported.
    """
    stored = _stored(config)
    if not stored or checkpoint_blocks(config) is not None:
        return None
    method = str(stored.get("quant_method"))
    if method not in _METHODS:
        expected = ", ".join((*_METHODS, _BLOCKS))
        raise CheckpointError(
            f"'quantization_config.quant_method': expected one of {expected}, got {method}; {_INSTEAD}"
        )
    return _METHODS[method](stored)


def checkpoint_blocks(config: Mapping[str, Any]) -> Fp8Blocks | None:
    """Parses `quantization_config` of a `config.json` whose weights are in FP8 blocks; returns None for all others.

    Raises:
        CheckpointError: the weights are quantized in a way that is not supported.
    """
    stored = _stored(config)
    if stored.get("quant_method") == _BLOCKS:
        _require(_BLOCKS, "fmt", stored.get("fmt", "e4m3"), {"e4m3"})
        _require(_BLOCKS, "activation_scheme", stored.get("activation_scheme", "dynamic"), {"dynamic"})
        return _blocks(_BLOCKS, "weight_block_size", stored.get("weight_block_size"))
    if stored.get("quant_method") == _COMPRESSED:
        return _compressed_blocks(stored)
    return None


def _stored(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `quantization_config`, which the first files of compressed-tensors call otherwise."""
    return config.get("quantization_config") or config.get("compression_config") or {}


def _blocks(method: str, field: str, sizes: object) -> Fp8Blocks:
    match sizes:
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return Fp8Blocks(rows=rows, columns=columns)
        case other:
            raise CheckpointError(f"'quantization_config.{field}': expected two sizes for {method}, got {other}")


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
    for field in ("is_marlin_format", "lm_head"):
        _require("gptq", field, bool(stored.get(field)), {False})
    for rule, changes in (stored.get("dynamic") or {}).items():
        if not rule.startswith("-:"):  # else these modules are not quantized, which the tensors tell
            _require("gptq", f"dynamic.{rule}", changes or {}, ({},))
    return GroupQuantization(
        method="gptq",
        bits=stored["bits"],
        group_size=_group_size("gptq", stored),
        zero_points_minus_one=checkpoint_format == "gptq",
        desc_act=bool(stored.get("desc_act", False)),
    )


def _gguf(stored: Mapping[str, Any]) -> GgufQuantization:
    """Parses what `checkpoint.gguf.config` writes."""
    tiled = stored.get("tiled_heads")
    return GgufQuantization(types=stored["types"], tiled_heads=None if tiled is None else (tiled[0], tiled[1]))


def _compressed_tensors(stored: Mapping[str, Any]) -> CompressedQuantization:
    """Parses the fields of compressed-tensors (compressed_tensors/quantization/quant_config.py)."""
    _check_compressed(stored)
    return CompressedQuantization(
        groups=tuple(_compressed_group(stored, path, group) for path, group in _config_groups(stored)),
        ignored=_modules("ignore", stored.get("ignore") or ()),
    )


def _compressed_blocks(stored: Mapping[str, Any]) -> Fp8Blocks | None:
    """Returns the blocks of a checkpoint whose config groups all have the same ones; None if the first has none."""
    groups = _config_groups(stored)
    sizes, field = groups[0][1]["weights"].get("block_structure"), f"{groups[0][0]}.weights.block_structure"
    if groups[0][1]["weights"].get("strategy") != "block":
        return None
    _check_compressed(stored)
    for path, group in groups:
        expected = {"num_bits": (8,), "type": ("float",), "strategy": ("block",), "block_structure": (sizes,)}
        _require_all(f"{path}.weights", group["weights"], expected)
        _check_activations(path, group)
    return _blocks(_COMPRESSED, field, sizes)


def _config_groups(stored: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the config groups, of which there is one at least, each with its field and with weights."""
    groups = [(f"config_groups.{name}", group) for name, group in stored["config_groups"].items()]
    for field, group in groups or [("config_groups", None)]:
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise CheckpointError(f"'quantization_config.{field}': expected an object with 'weights' for {_COMPRESSED}")
    return groups


def _check_compressed(stored: Mapping[str, Any]) -> None:
    """Refuses what changes answers besides config groups."""
    _require(_COMPRESSED, "quantization_status", stored.get("quantization_status") or "compressed", {"compressed"})
    for field in ("kv_cache_scheme", "transform_config", "moe_sparsity_config"):
        _require(_COMPRESSED, field, bool(stored.get(field)), {False})
    sparsity: Mapping[str, Any] = stored.get("sparsity_config") or {}
    _require(_COMPRESSED, "sparsity_config.format", sparsity.get("format", "dense"), {"dense"}, instead=_INSTEAD)


def _compressed_group(stored: Mapping[str, Any], path: str, group: Mapping[str, Any]) -> CompressedGroup:
    own, weights = group.get("format"), group["weights"]
    form = str(own or stored.get("format"))
    _require(_COMPRESSED, f"{path}.format" if own else "format", form, _COMPRESSED_TYPES, instead=_INSTEAD)
    _require_all(f"{path}.weights", weights, {"type": _COMPRESSED_TYPES[form]})
    _check_activations(path, group)
    return CompressedGroup(
        targets=_modules(f"{path}.targets", group["targets"]),
        scheme=_fp8(path, group) if weights["type"] == "float" else _integers(f"{path}.weights", weights, form),
        has_zero_points=not weights.get("symmetric", True),
    )


def _check_activations(path: str, group: Mapping[str, Any]) -> None:
    _require(_COMPRESSED, f"{path}.output_activations", bool(group.get("output_activations")), {False})
    if activations := group.get("input_activations"):
        _require_all(f"{path}.input_activations", activations, {"dynamic": (True,)})


def _fp8(path: str, group: Mapping[str, Any]) -> Literal["fp8"]:
    weights, activations = group["weights"], group.get("input_activations") or {}
    strategies = ("channel", "tensor")
    _require_all(f"{path}.weights", weights, {"num_bits": (8,), "strategy": strategies, "symmetric": (True,)})
    expected = {"num_bits": (8,), "type": ("float",), "strategy": ("token",)}
    _require_all(f"{path}.input_activations", activations, expected)
    return "fp8"


def _integers(path: str, weights: Mapping[str, Any], form: str) -> MatrixScheme:
    bits, is_symmetric, strategy = weights.get("num_bits"), weights.get("symmetric", True), weights.get("strategy")
    _require(_COMPRESSED, f"{path}.num_bits", bits, (4, 8) if form == "pack-quantized" else (8,))
    _require(_COMPRESSED, f"{path}.strategy", strategy, ("channel", "group", "tensor"))
    group_size = _group_size(_COMPRESSED, weights, f"{path}.group_size") if strategy == "group" else None
    if bits == 8 and is_symmetric and group_size is None:
        return "int8"
    return GroupQuantization(
        method="compressed-tensors",
        bits=weights["num_bits"],
        group_size=group_size,
        zero_points_minus_one=False,
        desc_act=weights.get("actorder") in _ACTIVATION_ORDERS,
    )


def _modules(field: str, listed: Iterable[str]) -> Modules:
    expressions = [each.removeprefix(_EXPRESSION) for each in listed if each.startswith(_EXPRESSION)]
    try:
        compiled = tuple(map(re.compile, expressions))
    except re.error as error:
        raise CheckpointError(f"'quantization_config.{field}': expected expressions, got an error: {error}") from error
    return Modules(names=frozenset(listed), expressions=compiled)


_COMPRESSED = "compressed-tensors"
_EXPRESSION = "re:"

_COMPRESSED_TYPES: Mapping[str, Collection[str]] = {
    "pack-quantized": ("int",),
    "int-quantized": ("int",),
    "float-quantized": ("float",),
    "naive-quantized": ("float", "int"),
}
"""Types of weights by the format of a config group."""

_ACTIVATION_ORDERS = ("group", "dynamic", True)
"""Values of `actorder` with which groups are not consecutive inputs."""

_INSTEAD = "use one of these, or the unquantized checkpoint with --quantization int4 or int8"

_BLOCKS = "fp8"
"""Name of FP8 in blocks as a method (transformers, quantizers/quantizer_finegrained_fp8.py)."""

_METHODS: Mapping[str, Callable[[Mapping[str, Any]], CheckpointQuantization]] = {
    "awq": _awq,
    "gptq": _gptq,
    _COMPRESSED: _compressed_tensors,
    "gguf": _gguf,
}


def _group_size(method: str, stored: Mapping[str, Any], field: str = "group_size") -> int | None:
    size = stored["group_size"]
    if size == -1:
        return None
    if size <= 0 or size % PACKED_INPUTS:
        raise CheckpointError(
            f"'quantization_config.{field}': expected -1 or a multiple of {PACKED_INPUTS} for {method}, got {size}"
        )
    return size


def _require_all(path: str, fields: Mapping[str, Any], supported: Mapping[str, Collection[object]]) -> None:
    for field, values in supported.items():
        _require(_COMPRESSED, f"{path}.{field}", fields.get(field), values)


def _require(method: str, field: str, value: object, supported: Collection[object], *, instead: str = "") -> None:
    if value not in supported:
        names = " or ".join(sorted(map(str, supported)))
        message = f"'quantization_config.{field}': expected {names} for {method}, got {value}"
        raise CheckpointError(f"{message}; {instead}" if instead else message)
