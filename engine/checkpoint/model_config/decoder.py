"""The configuration of a decoder: its sizes, and the traits in which decoders differ."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Rotary frequencies of which the lowest are 0, "proportional" in checkpoints of Gemma 4: those pairs of a head's
    dimensions are the same at all positions."""

    share: float
    """Share of the frequencies that are not 0."""
    factor: float = 1.0
    """What these are divided by."""


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | LongRopeScaling | YarnScaling | ProportionalScaling


LayerKind: TypeAlias = Literal["full", "sliding", "delta_net", "short_conv"]
"""What a layer does before its MLP: attend to all tokens up to its own, or to the last ones alone, or update a state of
fixed size."""


class KVHeads(NamedTuple):
    """The heads of keys and of values in a layer of attention."""

    number: int
    dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingAttention:
    """What "sliding" layers have in common."""

    window: int
    """Tokens that a token attends to: itself and those right before it."""
    rope_theta: float
    """Base of their rotary wavelengths, which are not scaled."""
    kv_heads: KVHeads | None = None
    """None: those of the layers that attend to all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEmbeddings:
    """Embeddings of a token that layers add, each its own, besides the one that they compute on (Gemma 3n, Gemma 4)."""

    vocab_size: int
    width: int
    """Values for each layer."""
    media_token_id: int
    """Token whose embeddings placeholders of media have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts (arXiv 2101.03961), which some layers have in place of the gated MLP, or beside it."""

    num_experts: int
    num_chosen: int
    """Experts that compute a token."""
    intermediate_size: int
    """Features between the products of an expert."""
    renormalized: bool
    """The weights of the experts that compute a token add up to 1."""
    layers: frozenset[int]
    """Indices of the layers."""
    shared_size: int = 0
    """Features of an expert that computes all tokens; 0: none."""
    shared_gate: bool = True
    """The shared expert is weighed by the sigmoid of a score of its own. False: its weight is 1, as in DeepSeek-V2."""
    beside_mlp: bool = False
    """The layers have a gated MLP too, to whose outputs those of the experts are added. The router has a norm of its
    own, and each expert a factor, as in Gemma 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSizes:
    """The sizes of "delta_net" layers: gated delta nets (arXiv 2412.06464)."""

    kind: ClassVar[LayerKind] = "delta_net"
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

    @property
    def matrices(self) -> tuple[int, int, int]:
        """The matrices of a state: their number, rows and columns."""
        return self.num_value_heads, self.key_head_dim, self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvSizes:
    """The sizes of "short_conv" layers: gated convolutions over the last tokens (arXiv 2511.23404)."""

    kind: ClassVar[LayerKind] = "short_conv"
    matrices: ClassVar[tuple[int, int, int]] = (0, 0, 0)
    """A state has none."""
    conv_width: int
    """Channels: as many as the hidden size, or a rank's share of them."""
    conv_size: int
    """Tokens that the convolution reads: its own and those right before it."""


StateSizes: TypeAlias = DeltaNetSizes | ShortConvSizes
"""The sizes of layers that keep a state for each sequence: the last inputs of a convolution, and matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """A decoder: layers of grouped-query attention, gated delta nets or short convolutions, each with a gated MLP or
    experts, as of Qwen3, Qwen3.5, LFM2, Llama, Phi-3 or Gemma 3."""

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
    alternating_rotary: bool = False
    """Checkpoints rotate the pairs (x[2i], x[2i + 1]) of a head, as those of GLM do."""
    mrope_interleaved: bool = False
    """The axes of positions alternate over a head's pairs of dimensions; see `layers.rotary.rotary_axes`."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Activation of the gates in the MLPs."""
    embedding_factor: float = 1.0
    """Factor of the tokens' embeddings, rounded to their type; not of those that an encoder computes."""
    score_factor: float | None = None
    """Factor of the products of queries and keys; None: head_dim ** -0.5. Not None only with `head_norms`."""
    value_norms: bool = False
    """Heads of values are divided by their root mean square, as in Gemma 4."""
    keys_are_values: bool = False
    """Layers that attend to all tokens project keys and values alike, as in larger Gemma 4."""
    output_norms: bool = False
    """The outputs of attention and of the MLP are normalized before they are added, as in Gemma 3."""
    zero_centered_norms: bool = False
    """Checkpoints store the weights of norms minus 1, as those of Gemma 3 and Qwen3.5 do."""
    output_gate: bool = False
    """The outputs of attention are multiplied by the sigmoid of gates, one for each value, which checkpoints store
    behind the queries of each head, as in Qwen3.5."""
    sliding: SlidingAttention | None = None
    """None: no layer is "sliding"."""
    states: StateSizes | None = None
    """Sizes of the layers that keep a state, which are of one kind; None without any."""
    num_sharing_layers: int = 0
    """Last layers of attention without keys and values of their own; see `cache_layer`."""
    sharing_mlp_factor: int = 1
    """How many times `intermediate_size` these layers' MLPs have."""
    layer_embeddings: LayerEmbeddings | None = None
    layer_factors: bool = False
    """The output of each layer is multiplied by a number of the checkpoint, as in Gemma 4."""
    logit_cap: float | None = None
    """Logits are cap · tanh(logits / cap)."""
    bidirectional_run: int = 0
    """Greatest length of the runs of placeholders whose tokens attend to each other, also to later ones, as in Gemma 3.
    A step computes them together. 0: attention is causal everywhere."""
    bidirectional_full: bool = True
    """Layers that attend to all tokens do so in these runs too; False for Gemma 4, where sliding ones alone do."""
    bidirectional_prompt: bool = False
    """All tokens of a prompt attend to each other, also to later ones, as in PaliGemma (arXiv 2407.07726). A step
    computes them together. `bidirectional_run` is then the length of an image's run."""
    experts: ExpertsConfig | None = None
    """None: all layers have a gated MLP."""
    num_mtp_layers: int = 0
    """Layers behind the decoder's that predict the token after the next one."""
    mtp_repeats_normed: bool = True
    """For further tokens it reads its own output after the norm; else before it, as in GLM."""
    uses_mtp: bool = False
    """Draft tokens are proposed with these. Else they are not loaded."""
    num_deepstack_layers: int = 0
    """First layers after which values of the encoder output are added to the hidden states of placeholder tokens
    (DeepStack, arXiv 2406.04334)."""

    @property
    def num_layers(self) -> int:
        return len(self.layer_kinds)

    def kv_heads(self, index: int) -> KVHeads:
        """Returns the heads of keys and values of a layer of attention."""
        own = self.sliding.kv_heads if self.sliding is not None and self.layer_kinds[index] == "sliding" else None
        return own or KVHeads(self.num_kv_heads, self.head_dim)

    def cache_layer(self, index: int) -> int:
        """Returns the layer whose keys and values a layer attends to: its own, or for the last `num_sharing_layers` the
        last one of their kind before those."""
        first = self.num_storing_layers
        if index < first:
            return index
        return max(each for each in range(first) if self.layer_kinds[each] == self.layer_kinds[index])

    @property
    def num_storing_layers(self) -> int:
        """Layers up to the last one that stores something for later tokens."""
        return self.num_layers - self.num_sharing_layers

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def encoder_row_width(self) -> int:
        """Values of the encoder output for each placeholder token: its embedding, then what each layer adds."""
        return self.hidden_size * (1 + self.num_deepstack_layers)
