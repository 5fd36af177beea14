"""Stub media: only their kind and number of tokens matter."""

from dataclasses import dataclass

from glimpse.media.kind import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StubMedium:
    """A medium of a prompt."""

    kind: MediaKind
    num_tokens: int
