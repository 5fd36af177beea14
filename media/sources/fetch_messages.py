"""Messages between the front end and its fetcher process. The policy comes first, and back once it has started."""

from typing import TypeAlias

import msgspec

from glimpse.frames import Frames
from glimpse.media.errors import MediaErrorCode
from glimpse.media.sources.policy import FetchPolicy


class StartFetch(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Starts a fetch."""

    number: int
    url: str
    max_bytes: int
    timeout_seconds: float


class CancelFetch(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """Cancels a fetch, which may have ended."""

    number: int


class FilePiece(msgspec.Struct, frozen=True, kw_only=True, tag="piece"):
    """The next piece of a file."""

    number: int
    data: bytes


class FetchCompleted(msgspec.Struct, frozen=True, kw_only=True, tag="completed"):
    """The end of a fetch whose file is complete."""

    number: int
    fresh_seconds: float


class FetchFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The end of a fetch without a file."""

    number: int
    code: MediaErrorCode
    message: str


class FetchCancelled(msgspec.Struct, frozen=True, kw_only=True, tag="cancelled"):
    """The end of a fetch that was cancelled."""

    number: int


Command: TypeAlias = StartFetch | CancelFetch
Ended: TypeAlias = FetchCompleted | FetchFailed | FetchCancelled
"""Each fetch ends with one of these."""

POLICIES = Frames[FetchPolicy](FetchPolicy)
COMMANDS = Frames[Command](Command)
EVENTS = Frames[FilePiece | Ended](FilePiece | Ended, max_bytes=1 << 20)
