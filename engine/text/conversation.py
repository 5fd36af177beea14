"""A conversation as the chat template sees it: roles, texts, calls of tools, and the places where media stand.

Knows neither pixels nor tokens. The media themselves are given beside the conversation, in the order of their slots.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from glimpse.media.kind import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSlot:
    """The place of one medium between the texts of a message."""

    kind: MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that an assistant made."""

    id: str
    """Names the call, so that a tool's message can answer it."""
    name: str
    """The function's."""
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """system, developer, user, assistant or tool."""
    content: tuple[str | MediaSlot, ...]
    """Texts and media in the order in which they were given; empty is a message without content."""
    name: str | None = None
    """Who speaks, where several share a role; what a template makes of it is the template's affair."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant calls, after what it says."""
    tool_call_id: str | None = None
    """The call whose result a tool's message is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A function that the model may call."""

    name: str
    """By which it is called."""
    description: str | None
    """What it does and when to call it."""
    parameters: str
    """The JSON Schema of its arguments, an object, as text; its keys are in the order in which the model sees them."""
    strict: bool
    """The arguments always meet the schema."""


class ToolMode(StrEnum):
    """Whether tools are called, where none is chosen by name."""

    NONE = "none"
    """Never."""
    AUTO = "auto"
    """As the model decides."""
    REQUIRED = "required"
    """At least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTool:
    """One tool that is called, chosen by the client."""

    name: str


ToolChoice: TypeAlias = ToolMode | NamedTool
