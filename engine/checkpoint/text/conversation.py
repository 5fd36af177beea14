"""Conversations for chat templates: roles, texts, tool calls and slots for media.

The media themselves are passed separately, in the order of their slots.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from glimpse.media.kind import MediaKind

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Who speaks, by the names in chat templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSlot:
    """Position of one medium among the texts of a message."""

    kind: MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of an assistant message."""

    id: str
    """Identifier by which a tool message refers to the call."""
    name: str
    arguments: str
    """A JSON object, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: tuple[str | MediaSlot, ...]
    """Texts and media in order; empty: the message has no content."""
    name: str | None = None
    """Name of the participant; templates may ignore it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls of an assistant message, which follow its content."""
    tool_call_id: str | None = None
    """Id of the tool call that a tool message answers."""
    reasoning: str | None = None
    """Reasoning of an assistant message, which precedes its content; templates may ignore it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A function that the model may call."""

    name: str
    description: str | None
    """What the function does and when to call it."""
    parameters: str
    """JSON Schema of the arguments, as JSON text; the model sees its keys in this order."""
    strict: bool
    """The arguments must match the schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """Options of the chat template."""

    tools: tuple[ToolDefinition, ...] = ()
    """Tools that the template shows to the model."""
    add_generation_prompt: bool = True
    """The prompt ends with the header of an assistant's message."""
    continue_final_message: bool = False
    """The prompt ends after the text of the last message, an assistant's, without closing it;
    `add_generation_prompt` is ignored then."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further variables of the chat template, as JSON values."""


class ToolMode(StrEnum):
    """Whether the model may or must call tools."""

    NONE = "none"
    """No tool is called."""
    AUTO = "auto"
    """The model decides."""
    REQUIRED = "required"
    """The model calls at least one tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTool:
    """The client names the tool to call."""

    name: str


ToolChoice: TypeAlias = ToolMode | NamedTool


class _Medium(Protocol):
    @property
    def kind(self) -> MediaKind: ...


def filled(messages: Sequence[ChatMessage], loaded: Iterable[Sequence[str | _Medium]]) -> tuple[ChatMessage, ...]:
    """Returns the messages with the texts and slots of what was loaded for each of their slots, in order."""
    parts = iter(loaded)
    return tuple(replace(message, content=tuple(_filled(message.content, parts))) for message in messages)


def _filled(content: Iterable[str | MediaSlot], loaded: Iterator[Sequence[str | _Medium]]) -> Iterator[str | MediaSlot]:
    for part in content:
        if isinstance(part, str):
            yield part
        else:
            yield from (each if isinstance(each, str) else MediaSlot(kind=each.kind) for each in next(loaded))


def num_characters(messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition] = ()) -> int:
    """Counts the characters that a chat template renders at most once each: texts, tool calls, tool definitions."""
    texts = sum(len(part) for message in messages for part in message.content if isinstance(part, str))
    texts += sum(len(message.reasoning or "") for message in messages)
    calls = sum(len(call.name) + len(call.arguments) for message in messages for call in message.tool_calls)
    definitions = sum(len(tool.name) + len(tool.description or "") + len(tool.parameters) for tool in tools)
    return texts + calls + definitions
