"""What is particular to one architecture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glimpse.engine.checkpoint.families.grounding import Form
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import EncoderConfig, SquareVitConfig, VitConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind
from glimpse.media.processing.media_processing import MediaProcessing

if TYPE_CHECKING:  # the engine loads no libraries of embeddings
    from glimpse.media.medium import Medium


def _reads_no_media(_path: Path, _config: ModelConfig) -> MediaProcessing:
    return MediaProcessing()


def _one_run(_config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...]:
    return (1, 1, num_rows)


def _no_medium(_config: ModelConfig, _num_tokens: int) -> None:
    return None


def _no_layout(medium: "Medium", _context: LayoutContext) -> TokenLayout:
    raise ValueError(f"the model does not support {medium.kind} input")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyConfig:
    """The parts of `config.json` that each family spells in its own way."""

    text: TextConfig
    encoder: EncoderConfig | None = None
    placeholder_ids: Mapping[str, int]
    """Placeholder token id of each kind of media that the model supports: "image", "video", "audio"."""
    placeholder_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """See `ModelConfig`."""
    placeholder_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further placeholder tokens, whose ids `tokenizer.json` has."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights of checkpoints whose documents do not say it."""
    eos_token_ids: tuple[int, ...] = ()
    """The end tokens of checkpoints whose files name none."""
    end_tokens: tuple[str, ...] = ()
    """Further end tokens, which the files of published checkpoints do not name as such."""
    token_embedding_size: int | None = None
    """See `ModelConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestMedium:
    """A large input of an encoder, for the sizes of memory."""

    kind: MediaKind
    grid: tuple[int, ...]
    """See `MediaSpan`."""
    num_bytes: int
    """Size of the content."""
    num_positions: int
    """Hidden states inside the encoder."""
    width: int
    """Values of a hidden state."""
    intermediate_size: int
    """Width inside the encoder's MLPs."""

    @classmethod
    def of_tiles(
        cls,
        vit: SquareVitConfig,
        num_tiles: int,
        *,
        grid: tuple[int, ...],
        kind: MediaKind = MediaKind.IMAGE,
        max_batch_tiles: int | None = None,
    ) -> "LargestMedium":
        """Returns the medium of so many tiles or frames, at most `max_batch_tiles` of which are encoded at once."""
        return cls(
            kind=kind,
            grid=grid,
            num_bytes=3 * num_tiles * vit.image_size**2,
            num_positions=min(num_tiles, max_batch_tiles or num_tiles) * vit.num_positions,
            width=vit.width,
            intermediate_size=vit.intermediate_size,
        )

    @classmethod
    def of_images(cls, vit: VitConfig, num_image_tokens: int, num_tokens: int) -> "LargestMedium":
        """Returns images of one size and of about `num_tokens` tokens, one under the other."""
        num_images = max(1, num_tokens // num_image_tokens)
        return cls.of_tiles(vit, num_images, grid=(num_images, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionSpec:
    """A part of the model that may be a checkpoint of its own."""

    document: str
    """Field that has the part's configuration where one checkpoint holds all parts."""
    prefix: str
    """See `Companion`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankQuestion:
    """What a model is asked that says whether a document answers a query. Default: Qwen3-Reranker's model card (arXiv
    2506.05176)."""

    text: str = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: "
    """What stands before the document."""
    instruction: str = "Given a web search query, retrieve relevant passages that answer the query"
    """The instruction of requests without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec:
    """One architecture: a row of the registry."""

    read_config: Callable[[Mapping[str, Any]], FamilyConfig]
    """Reads `config.json`.

    Raises:
        KeyError: a field is missing.
        CheckpointError: a value is not supported.
    """
    companions: Mapping[str, CompanionSpec] = field(default_factory=dict[str, CompanionSpec])
    """Fields of `config.json` that name other checkpoints, which hold parts of the model. `read_config` finds the
    configuration of each in its `document`."""
    module: str
    """Module in `engine/worker/models` whose `make_model` builds it. A name, because the front end loads no torch."""
    fallback_template: str | None = None
    """Chat template for checkpoints without one."""
    document_template: str | None = None
    """Chat template in place of the checkpoint's own: what models for late interaction embed as a document."""
    query_affixes: tuple[str, str] = ("", "")
    """Texts before and after a query that such a model embeds."""
    rerank_question: RerankQuestion = RerankQuestion()
    video_template: str | None = None
    """Chat template of conversations with videos, for checkpoints whose own one shows none."""
    slot_texts: Mapping[MediaKind, str] = field(default_factory=dict[MediaKind, str])
    """What stands for a medium in raw prompts, and in messages whose content a chat template takes as one text, where
    it is more than the placeholder. {} stands for the medium's number among those of its kind, from 1."""
    slots_in_lines: bool = True
    """Such a text has each part of a message on a line of its own. Otherwise nothing separates the parts."""
    numbered_tags: bool = False
    """The slot text of images is no token. The texts between images are encoded each by itself, after the tokens that
    start each text."""
    asking_tokens: frozenset[str] = frozenset()
    """Special tokens that messages may spell: those that ask for something, and mark no part of a prompt."""
    tool_template: str | None = None
    """Chat template of conversations with tools, for checkpoints whose own one ignores them."""
    reasoning: str = ""
    """Name of the format of reasoning, for checkpoints whose chat template shows none; empty: they do not reason."""
    read_media: Callable[[Path, ModelConfig], MediaProcessing] = _reads_no_media
    """Reads how the checkpoint in a folder processes media. Default: the model reads text alone.

    Raises:
        ValueError: a file is missing, damaged, contradicts `config.json` or is not supported.
    """
    layout: "Callable[[Medium, LayoutContext], TokenLayout]" = _no_layout
    """Returns the tokens of a medium in a prompt.

    Raises:
        ValueError: the medium is of a kind that the model does not support.
    """
    largest_medium: Callable[[ModelConfig, int], LargestMedium | None] = _no_medium
    """Returns a medium of about that many placeholder tokens, or the largest one; None without an encoder."""
    embedding_merge_size: Callable[[ModelConfig], int] | None = None
    """Returns how many patches lie along each side of a token's square, for models that need the grid of images and
    videos in patches with their embeddings."""
    embedding_grid: Callable[[ModelConfig, MediaKind, int], tuple[int, ...] | None] = _one_run
    """Returns the grid of a medium whose embeddings have so many rows, for other models. `layout` reads it. None: the
    number of rows of an image is not enough to lay it out; its size is needed.

    Raises:
        ValueError: no medium has so many rows; says how many are expected.
    """
    grounding: tuple[Form, ...] = ()
    """Forms of boxes and points in its answers; empty if it is not known to write any."""
    embedding_kinds: frozenset[MediaKind] | None = None
    """Kinds of media that embeddings may replace, if they are not all that the model supports."""

    @property
    def reads_media(self) -> bool:
        """Whether the model reads anything but text."""
        return self.layout is not _no_layout
