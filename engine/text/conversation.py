"""A conversation as the chat template sees it: roles, texts, and the places where media stand.

Knows neither pixels nor tokens. The media themselves are given beside the conversation, in the order of their slots.
"""

from dataclasses import dataclass

from engine.plan import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSlot:
    """The place of one medium between the texts of a message."""

    kind: MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """system, developer, user, assistant or tool."""
    content: tuple[str | MediaSlot, ...]
    """Texts and media in the order in which they were given; empty is a message without content."""
    name: str | None = None
    """Who speaks, where several share a role; what a template makes of it is the template's affair."""
