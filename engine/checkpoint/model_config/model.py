"""A model's configuration as values: its decoder, its encoder, and what serving needs besides.

The front end makes prompts with it; the engine builds the model from it. `engine/checkpoint/families` reads it from a
checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from glimpse.engine.checkpoint.model_config.decoder import LongRopeScaling, TextConfig
from glimpse.engine.checkpoint.model_config.encoders import EncoderConfig, VisionConfig
from glimpse.engine.checkpoint.quantization import CheckpointQuantization, Fp8Blocks
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.media.processing import preprocessor

_Encoder = TypeVar("_Encoder", bound=EncoderConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """Another checkpoint that holds a part of the model."""

    field: str
    """Field of `config.json` that names the companion."""
    path: Path
    prefix: str
    """What the names of its tensors have before them in a checkpoint that holds all parts."""


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
    placeholder_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What chat templates render for kinds of media for which they do not render the placeholder token."""
    eos_token_ids: tuple[int, ...]
    suppressed_token_ids: tuple[int, ...] = ()
    """Tokens that are never sampled."""
    bad_phrases: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that no answer has."""
    unapplied_fields: tuple[str, ...] = ()
    """Fields of `generation_config.json`, with their values, that change answers elsewhere and none here."""
    quantization: CheckpointQuantization | None
    """Quantization of the decoder's stored weights, if any."""
    fp8_blocks: Fp8Blocks | None = None
    """The blocks of stored weights that are dequantized when they are loaded, if there are any."""
    pooling: PoolingParams = field(default_factory=PoolingParams)
    """How prompts become embeddings, unless a request says otherwise."""
    is_embedding_model: bool = False
    """Whether it was published for embeddings, in the layout of sentence-transformers or as a decoder alone."""
    has_output_head: bool = True
    """Tokens can be sampled from it. Only a model published for embeddings may have no output head."""
    token_embedding_size: int | None = None
    """Values of the vector of each token, of a model for late interaction. None: it is none."""
    companions: tuple[Companion, ...] = ()
    """Checkpoints that hold the parts which this one lacks."""

    @property
    def embedding_size(self) -> int:
        """Values of a vector that embeddings have, before they are cut."""
        return self.token_embedding_size or self.text.hidden_size

    def within(self, max_model_len: int | None) -> "ModelConfig":
        """Returns the configuration where no sequence has more tokens than this; None: than the model's own limit."""
        scaling = self.text.rope_scaling
        if max_model_len is None or not isinstance(scaling, LongRopeScaling):
            return self
        scaling = replace(scaling, max_context=min(scaling.max_context, max_model_len))
        return replace(self, text=replace(self.text, rope_scaling=scaling))

    @property
    def vision(self) -> VisionConfig:
        """The encoder of a Qwen-VL model."""
        return self.encoder_as(VisionConfig)

    def encoder_as(self, kind: type[_Encoder]) -> _Encoder:
        """Returns the encoder of a model whose family has encoders of this class."""
        assert isinstance(self.encoder, kind)
        return self.encoder


def read_json(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Reads a checkpoint's file, as `preprocessor.read_json` does. Raises CheckpointError instead of ValueError."""
    try:
        return preprocessor.read_json(path, is_optional=is_optional)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
