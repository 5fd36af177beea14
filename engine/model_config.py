"""A model's configuration as values: its decoder, its encoder, and what serving needs besides.

The front end makes prompts with it; the engine builds the model from it. `glimpse.engine.families` reads it from a
checkpoint.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glimpse.engine.errors import CheckpointError
from glimpse.engine.quantization import CheckpointQuantization


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """Window attention of a vision encoder: most of its blocks attend within square windows of a frame."""

    side: int
    """Side of a window in tokens. Windows at the right and bottom edges may be smaller."""
    full_attention_blocks: frozenset[int]
    """Indices of the blocks that attend to the whole frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Vision encoder of Qwen2-VL or Qwen2.5-VL."""

    depth: int
    embed_dim: int
    """Width inside the encoder."""
    hidden_size: int
    """Width of its output, which is the decoder's."""
    num_heads: int
    intermediate_size: int
    """Width inside the MLPs."""
    in_channels: int
    patch_size: int
    """Side of a patch in pixels."""
    spatial_merge_size: int
    """Patches along each side of a square that is merged into one token."""
    temporal_patch_size: int
    """Frames in a patch. An image is repeated to fill it."""
    gated: bool = False
    """True: RMSNorm and gated MLPs, as in Qwen2.5-VL. False: LayerNorm and quick-GELU, as in Qwen2-VL."""
    windows: WindowConfig | None = None
    """None: all blocks attend to the whole frame."""
    tokens_per_second: int | None = None
    """Positions on the time axis for each second of video; None: one for each temporal patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """Audio encoder of Qwen2-Audio."""

    num_mel_bins: int
    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    num_heads: int
    max_positions: int
    """Most positions of an input: a position is two mel frames, and a token is two positions."""


EncoderConfig: TypeAlias = VisionConfig | AudioConfig


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


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """A decoder: pre-norm layers of grouped-query attention and a gated MLP, as of Qwen2, Qwen3, Llama or Phi-3."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The parts of a checkpoint's `config.json` and `generation_config.json` that serving needs."""

    architecture: str
    """Name in `architectures`, such as "Qwen2VLForConditionalGeneration"."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the stored weights."""
    text: TextConfig
    encoder: EncoderConfig | None
    """Encoder of the model's media: images and videos, or audio. None: the model reads text alone."""
    placeholder_ids: Mapping[str, int]
    """Placeholder token id of each kind of media that the model supports: "image", "video", "audio"."""
    eos_token_ids: tuple[int, ...]
    quantization: CheckpointQuantization | None
    """Quantization of the decoder's stored weights, if any."""

    @property
    def vision(self) -> VisionConfig:
        """The encoder of a model with a vision encoder."""
        assert isinstance(self.encoder, VisionConfig)
        return self.encoder


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON file of a checkpoint. Raises CheckpointError if it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"the checkpoint has no {path.name}") from error
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's {path.name} is not JSON: {error}") from error
