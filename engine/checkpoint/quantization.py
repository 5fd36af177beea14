"""Quantization schemes of checkpoints. Independent of torch."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
    """By the name of a matrix without `.weight`, for a decoder's in its own checkpoint; the experts of a layer share
    one."""
    tiled_heads: tuple[int, int] | None = None
    """The heads of a group of delta nets, and the groups, if the columns of heads are not in their order in files:
    those of the first head of each group are in front."""

    @property
    def is_of_encoder(self) -> bool:
        """Whether the encoder alone is quantized."""
        return not any(_OF_DECODER.match(name) for name in self.types)

    @property
    def kind(self) -> Literal["int4", "int8"]:
        """The value of `--quantization` that names weights of this type: that of the smallest."""
        return "int4" if any(GGUF_FORMATS[each].bits == 4 for each in self.types.values()) else "int8"

    def __str__(self) -> str:
        return f"gguf {', '.join(sorted(set(self.types.values())))}"

    def type_of(self, name: str) -> str | None:
        """Returns the type of a matrix, of an expert's or of a part; None if it is not quantized."""
        whole = _GATE.sub("q_proj", _PART.sub("in_proj", _DECODER.sub("", name)))
        return self.types.get(_EXPERT.sub(".experts.", whole))

    def format_of(self, names: Collection[str]) -> GroupFormat | None:
        """Returns a format that holds the values of all these matrices exactly; None if one is not quantized.

        8 bits hold those of 4, a group is divided into equal ones, and a zero point times the scale is a minimum.
        """
        formats = {GGUF_FORMATS[each] for name in names if (each := self.type_of(name)) is not None}
        if not formats or any(self.type_of(name) is None for name in names):
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

    method: Literal["awq", "gptq", "compressed-tensors"]
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


MatrixScheme: TypeAlias = GroupQuantization | Literal["int8", "fp8"]
"""How a matrix is stored: in groups, or in int8 or e4m3 with a scale for each output feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Modules of a network, as compressed-tensors lists them."""

    names: frozenset[str]
    """Whole names, or a class: "Linear" for all linears."""
    expressions: tuple[re.Pattern[str], ...]
    """Names that begin with one of these."""

    def rank(self, names: Collection[str]) -> int:
        """Returns how closely a linear is listed: 3 by name, 2 by an expression, 1 by its class, 0 if it is not.

        Args:
            names: what versions of transformers call it.
        """
        if not self.names.isdisjoint(names):
            return 3
        if any(expression.match(name) for expression in self.expressions for name in names):
            return 2
        return int("Linear" in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedGroup:
    """A config group of compressed-tensors: matrices that are stored alike."""

    targets: Modules
    scheme: MatrixScheme
    has_zero_points: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedQuantization:
    """Matrices as the config groups of compressed-tensors describe them; those that are listed nowhere are floats."""

    groups: tuple[CompressedGroup, ...]
    ignored: Modules

    @property
    def kinds(self) -> Sequence[Literal["int4", "int8", "fp8"]]:
        """The types of matrices, the smallest first."""
        schemes = [group.scheme for group in self.groups]
        stored = {each.kind if isinstance(each, GroupQuantization) else each for each in schemes}
        return [kind for kind in ("int4", "int8", "fp8") if kind in stored]

    @property
    def kind(self) -> Literal["int4", "int8", "fp8"]:
        """The value of `--quantization` that names weights of this type: that of the smallest."""
        return self.kinds[0]

    def __str__(self) -> str:
        return f"compressed-tensors {', '.join(self.kinds)}"

    def group_of(self, name: str) -> CompressedGroup | None:
        """Returns the group that targets a linear most closely, also if it is ignored.

        Args:
            name: its checkpoint name.
        """
        names = _module_names(name)
        group = max(self.groups, key=lambda each: each.targets.rank(names))
        return group if group.targets.rank(names) else None

    def scheme_of(self, names: Collection[str]) -> MatrixScheme | None:
        """Returns how the matrices that a linear stacks are stored; None if not alike, or if one is not quantized."""
        schemes: set[MatrixScheme | None] = {self._scheme_of(name) for name in names}
        return schemes.pop() if len(schemes) == 1 else None

    def _scheme_of(self, name: str) -> MatrixScheme | None:
        group = None if self.ignored.rank(_module_names(name)) else self.group_of(name)
        return None if group is None else group.scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Blocks:
    """e4m3 weights with a scale for each block of a matrix. They are dequantized when they are loaded, so a checkpoint
    with them is not a quantized one in what follows."""

    rows: int
    """Output features of a block."""
    columns: int
    """Inputs of a block."""


CheckpointQuantization: TypeAlias = GroupQuantization | GgufQuantization | CompressedQuantization

GGUF_FORMATS: Mapping[str, GroupFormat] = {
    name: GroupFormat(bits=bits, group_size=group_size, has_minimum=has_minimum, scale=scale)
    for name, bits, group_size, has_minimum, scale in (
        ("Q4_0", 4, 32, False, "float16"),
        ("Q4_1", 4, 32, True, "float16"),
        ("Q5_0", 8, 32, False, "float16"),
        ("Q5_1", 8, 32, True, "float16"),
        ("Q8_0", 8, 32, False, "float16"),
        ("Q2_K", 8, 16, True, "float32"),
        ("Q3_K", 8, 16, False, "float32"),
        ("Q4_K", 4, 32, True, "float32"),
        ("Q5_K", 8, 32, True, "float32"),
        ("Q6_K", 8, 16, False, "float32"),
        ("IQ4_NL", 8, 32, False, "float16"),
        ("IQ4_XS", 8, 32, False, "float32"),
    )
}
"""The exact format of each of GGUF's types that linears store."""


def _module_names(name: str) -> Collection[str]:
    """Returns what versions of transformers call a module, by what the model calls it or a part of it."""
    name = _STORED_PART.sub(lambda found: _PARTS[found[0]], name)
    if (found := _LAYER.fullmatch(name)) is None:
        return (name, f"model.{name}")
    return tuple(prefix + found[1] for prefix in ("model.", "model.language_model.", "language_model.model."))


_LAYER = re.compile(r"(?:model|model\.language_model|language_model\.model)\.(layers\..*)")
_PARTS: Mapping[str, str] = {".q_gate": ".q_proj", ".in_proj_c": ".in_proj", ".in_proj_x": ".in_proj"}
_STORED_PART = re.compile(r"\.(?:q_gate|in_proj_[cx])$")
_OF_DECODER = re.compile(r"(model\.(layers|embed_tokens)|lm_head|mtp)\b")
_DECODER = re.compile(r"^(language_model|llm)\.")
"""What checkpoints of models with an encoder put before the names of a decoder's tensors."""
_GATE, _PART = re.compile(r"\bq_gate$"), re.compile(r"\bin_proj_[cx]$")
"""Names of linears whose matrices are parts of others in checkpoints; see `arrange` of models."""
_EXPERT = re.compile(r"\.experts\.\d+\.")
