"""What the shared store says about its values. Imports no Redis client: servers without a store do not need it."""

from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum

import msgspec

from glimpse.media.errors import store_unavailable

CHUNK_BYTES = 1 << 20
"""Most of a value that is transferred at once: sending it occupies the event loop for about a millisecond."""
OVERHEAD_BYTES = 512
"""Estimated size of a value without its bytes."""


class StoreUnavailableError(Exception):
    """The shared media store cannot be reached, or refused a command."""


class ReferenceMissingError(Exception):
    """A value is to refer to one that has left the store."""


@contextmanager
def store_errors(advice: str) -> Generator[None]:
    """Turns errors of a store within the block into MediaError (STORE_UNAVAILABLE)."""
    try:
        yield
    except (StoreUnavailableError, TimeoutError):
        raise store_unavailable(advice) from None


class Outcome(StrEnum):
    """How an operation ended, for metrics."""

    HIT = "hit"
    MISS = "miss"
    STORED = "stored"
    SKIPPED = "skipped"
    """Not stored: it exceeds its area's budget, too much is on its way already, or there is a later value."""
    REMOVED = "removed"
    DAMAGED = "damaged"
    """What arrived differs from its header. It was removed."""
    FAILED = "failed"
    """Redis was unavailable or refused a command."""


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Describes a value."""

    digest: bytes
    """SHA-256 of the bytes."""
    num_bytes: int
    expires: float
    """Seconds since 1970-01-01 UTC."""
    note: bytes
    """What else the value's owner wants to know."""
