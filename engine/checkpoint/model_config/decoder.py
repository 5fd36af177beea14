"""The configuration of a decoder: its sizes, and the traits in which decoders differ."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Rotary frequencies divided by a factor (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's rotary scaling: long wavelengths are stretched by a factor, short ones kept, the others blended."""

    factor: float
    low_freq_factor: float
    """Wavelengths above `original_context` divided by this are stretched."""
    high_freq_factor: float
    """Wavelengths below `original_context` divided by this are kept."""
    original_context: int
    """Context window in tokens before the stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753), "longrope" or "su" in checkpoints of Phi-3: each wavelength has its own factor."""

    short_factors: tuple[float, ...]
    """Factors of the wavelengths where no sequence is longer than `original_context`, from the shortest wavelength."""
    long_factors: tuple[float, ...]
    """Factors of the wavelengths where sequences may be longer."""
    original_context: int
    """Context window in tokens before the stretch."""
    attention_factor: float
    """Factor of rotated queries and of rotated keys."""
    max_context: int
    """Most tokens of a sequence. All sequences have the factors of the longest, since keys in the cache keep theirs."""

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors in use."""
        return self.long_factors if self.max_context > self.original_context else self.short_factors


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): wavelengths that turn often are kept, those that turn seldom are stretched by a factor,
    the others blended."""

    factor: float
    kept: float
    """Index of the first wavelength that is not kept; may be between two."""
    stretched: float
    """Index of the first wavelength that is stretched by the whole factor."""
    attention_factor: float
    """Factor of rotated queries and of rotated keys."""


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | LongRopeScaling | YarnScaling


LayerKind: TypeAlias = Literal["full", "sliding", "delta_net"]
"""What a layer does before its MLP: attend to all tokens up to its own, or to the last ones alone, or update a state of
fixed size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingAttention:
    """What "sliding" layers have in common."""

    window: int
    """Tokens that a token attends to: itself and those right before it."""
    rope_theta: float
    """Base of their rotary wavelengths, which are not scaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts (arXiv 2101.03961), which some layers have in place of the gated MLP."""

    num_experts: int
    num_chosen: int
    """Experts that compute a token."""
    intermediate_size: int
    """Features between the products of an expert."""
    renormalized: bool
    """The weights of the experts that compute a token add up to 1."""
    layers: frozenset[int]
    """Indices of the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSizes:
    """The sizes of "delta_net" layers: gated delta nets (arXiv 2412.06464)."""

    num_key_heads: int
    """Heads of queries and of keys. Each serves as many consecutive heads of values."""
    num_value_heads: int
    """Heads of values, each with a state of its own."""
    key_head_dim: int
    value_head_dim: int
    conv_size: int
    """Tokens that the convolution of queries, keys and values reads: its own and those right before it."""

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_width(self) -> int:
        """Values of queries, keys and values of a token, in this order."""
        return 2 * self.num_key_heads * self.key_head_dim + self.value_width


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """A decoder: layers of grouped-query attention or gated delta nets, each with a gated MLP or experts, as of Qwen3,
    Qwen3.5, Llama, Phi-3 or Gemma 3."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_kinds: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]
    """Pairs of a head's dimensions that rotate with time, height and width; (all, 0, 0) if positions have one axis."""
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = True
    """The projections of queries, keys and values have a bias."""
    head_norms: bool = False
    """Each head of queries and keys has an RMSNorm before its rotation, as in Qwen3."""
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    """Share of a head's dimensions that rotate: the first ones. The others are the same at all positions."""
    mrope_interleaved: bool = False
    """The axes of positions alternate over a head's pairs of dimensions; see `layers.rotary.rotary_axes`."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Activation of the gates in the MLPs."""
    embedding_factor: float = 1.0
    """Factor of the tokens' embeddings, rounded to their type; not of those that an encoder computes."""
    query_factor: float = 1.0
    """Factor of the queries, besides that of attention, head_dim ** -0.5. Not 1 only with `head_norms`."""
    output_norms: bool = False
    """The outputs of attention and of the MLP are normalized before they are added, as in Gemma 3."""
    zero_centered_norms: bool = False
    """Checkpoints store the weights of norms minus 1, as those of Gemma 3 and Qwen3.5 do."""
    output_gate: bool = False
    """The outputs of attention are multiplied by the sigmoid of gates, one for each value, which checkpoints store
    behind the queries of each head, as in Qwen3.5."""
    sliding: SlidingAttention | None = None
    """None: no layer is "sliding"."""
    delta_net: DeltaNetSizes | None = None
    """None: no layer is "delta_net"."""
    bidirectional_run: int = 0
    """Length of the runs of placeholders whose tokens attend to each other, also to later ones, as in Gemma 3. A step
    computes them together. 0: attention is causal everywhere."""
    experts: ExpertsConfig | None = None
    """None: all layers have a gated MLP."""
    num_deepstack_layers: int = 0
    """First layers after which values of the encoder output are added to the hidden states of placeholder tokens
    (DeepStack, arXiv 2406.04334)."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def encoder_row_width(self) -> int:
        """Values of the encoder output for each placeholder token: its embedding, then what each layer adds."""
        return self.hidden_size * (1 + self.num_deepstack_layers)
