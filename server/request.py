"""What a client asks, parsed: frozen values in which everything is true that parsing checks. Knows no protobuf."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from glimpse.engine.sampling_params import Grammar, SamplingParams
from glimpse.engine.text.conversation import ChatMessage, ToolChoice, ToolDefinition
from glimpse.media.embeddings.tensor_file import TensorSource
from glimpse.media.kind import MediaKind
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import AudioOrCached, CachedSource, ImageOrCached, VideoOrCached


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """A picture of a conversation, not loaded yet."""

    kind: ClassVar = MediaKind.IMAGE
    source: ImageOrCached
    min_pixels: int | None
    """None: the checkpoint's own."""
    max_pixels: int | None
    """None: the checkpoint's own."""
    field: str
    """The path of its source in the request, for what may be said against it later."""
    background: Colour | None = None
    """What shows through where it is transparent; None: the server's own."""
    uuid: str | None = None
    """The client's name for it, under which it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoInput:
    """A clip of a conversation, not loaded yet."""

    kind: ClassVar = MediaKind.VIDEO
    source: VideoOrCached
    options: VideoOptions
    field: str
    """The path of what it is made of in the request."""
    uuid: str | None = None
    """The client's name for it, under which it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInput:
    """Embeddings in the place of a medium of a conversation, not read yet."""

    kind: MediaKind
    """Of the medium that they stand for."""
    embeddings: TensorSource | CachedSource
    grid_thw: TensorSource | None
    """The medium's patches in time, height and width, where they are said."""
    field: str
    """The path of their part in the request, or of the name that stands for them."""
    uuid: str | None = None
    """The client's name for them, under which they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioInput:
    """A sound of a conversation, not loaded yet."""

    kind: ClassVar = MediaKind.AUDIO
    source: AudioOrCached
    field: str
    """The path of its source in the request."""
    uuid: str | None = None
    """The client's name for it, under which it is kept."""


MediumInput: TypeAlias = ImageInput | VideoInput | AudioInput | EmbeddingInput


def is_left_out(medium: MediumInput) -> bool:
    """Nothing of it is sent but its name."""
    return isinstance(medium.embeddings if isinstance(medium, EmbeddingInput) else medium.source, CachedSource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All that makes the prompt of a conversation."""

    messages: tuple[ChatMessage, ...]
    media: tuple[MediumInput, ...]
    """In the order of their slots in `messages`."""
    tools: tuple[ToolDefinition, ...] = ()
    """Those that the model is shown."""
    add_generation_prompt: bool = True
    """The prompt ends with the beginning of an answer."""
    continue_final_message: bool = False
    """The prompt ends within the last message."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further variables of the chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """A text that is the prompt already; special tokens in it are special."""

    text: str
    field: str
    """Its path in the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """A prompt of token ids, all of them the model's."""

    token_ids: tuple[int, ...]


PromptSource = Conversation | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A language that an answer is in."""

    grammar: Grammar
    field: str
    """The path in the request of what says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of a request."""

    definitions: tuple[ToolDefinition, ...]
    """Each with a name of its own; none: the request has no tools."""
    choice: ToolChoice
    """NONE where there are no tools."""
    parallel: bool
    """One answer may call several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Prompts to be answered, all in the same way."""

    prompts: tuple[PromptSource, ...]
    """At least one."""
    sampling: SamplingParams
    """Of the first answer to each prompt; where there is a seed, answer i has the seed plus i."""
    num_completions: int
    """To each prompt."""
    skip_special_tokens: bool
    """Special tokens have no text."""
    constraint: Constraint | None
    tools: Tools | None
    """Those that the answers may call, at least one; None: nothing in the answers is a call."""
    priority: int
    """Smaller is sooner."""
    cache_salt: str
    """Empty: shared with all requests that give none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to be answered."""

    generation: GenerationRequest
    include_usage: bool
    """A stream ends with a message that tells the usage."""
    metadata: Mapping[str, str]
    """What the answer repeats."""
    echoes_service_tier: bool
    """The answer tells at which service tier it was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Texts to be continued."""

    generation: GenerationRequest
    include_usage: bool
    """A stream ends with a message that tells the usage."""
    echo: bool
    """Each continuation begins with its prompt."""
