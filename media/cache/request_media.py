"""The media of one request: whose they are, what they hold in memory, and what it took to get them."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from glimpse.media.cache.memory_budget import MemoryReservation


@dataclass(slots=True, kw_only=True)
class MediaUsage:
    """What it took to get the media of a request."""

    num_fetched: int = 0
    """Files fetched from other servers."""
    num_fetch_cache_hits: int = 0
    """Files whose fetching was spared: they were kept, or another request was at it."""
    num_decoded: int = 0
    """Media decoded."""
    num_decode_cache_hits: int = 0
    """Media that were kept decoded, or that another request was at."""
    fetch_seconds: float = 0.0
    """Spent waiting for files from other servers, each wait counted by itself."""
    decode_seconds: float = 0.0
    """Spent waiting for media to be decoded, each wait counted by itself."""

    @property
    def num_media(self) -> int:
        """All that were loaded."""
        return self.num_decoded + self.num_decode_cache_hits


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The media of one request, while it is served."""

    namespace: str
    """Whose they are; empty: of all who say nothing."""
    reservation: MemoryReservation
    """Their memory."""
    usage: MediaUsage
    """Counted while they are loaded."""

    @contextmanager
    def fetching(self) -> Generator[None]:
        """Measures a block that waits for a file."""
        began = monotonic()
        try:
            yield
        finally:
            self.usage.fetch_seconds += monotonic() - began

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Measures a block that waits for a medium."""
        began = monotonic()
        try:
            yield
        finally:
            self.usage.decode_seconds += monotonic() - began

    def count_fetch(self, *, is_cache_hit: bool) -> None:
        """Counts a file."""
        self.usage.num_fetch_cache_hits += is_cache_hit
        self.usage.num_fetched += not is_cache_hit

    def count_decoding(self, *, is_cache_hit: bool) -> None:
        """Counts a medium."""
        self.usage.num_decode_cache_hits += is_cache_hit
        self.usage.num_decoded += not is_cache_hit
