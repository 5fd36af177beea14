"""What a client asks, parsed: frozen values in which everything is true that parsing checks. Knows no protobuf."""

from dataclasses import dataclass

from engine.sampling_params import SamplingParams
from engine.text.conversation import ChatMessage
from media.clip_options import ClipOptions
from media.source import ClipSource, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """A picture of a conversation, not loaded yet."""

    source: Source
    min_pixels: int | None
    """None: the checkpoint's own."""
    max_pixels: int | None
    """None: the checkpoint's own."""
    field: str
    """The path of its source in the request, for what may be said against it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipInput:
    """A clip of a conversation, not loaded yet."""

    source: ClipSource
    options: ClipOptions
    field: str
    """The path of what it is made of in the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages and the media that stand in them."""

    messages: tuple[ChatMessage, ...]
    media: tuple[ImageInput | ClipInput, ...]
    """In the order of their slots in `messages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A conversation to be answered."""

    conversation: Conversation
    sampling: SamplingParams
    include_usage: bool
    """A stream ends with a message that tells the usage."""
    priority: int
    """Smaller is sooner."""
    cache_salt: str
    """Empty: shared with all requests that give none."""
