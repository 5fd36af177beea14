"""State of the media of one request: cache namespace, memory reservation and usage."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from time import monotonic

from glimpse.media.cache.memory_budget import MemoryReservation


@dataclass(slots=True, kw_only=True)
class MediumOrigin:
    """Where one medium of a request came from."""

    num_fetched: int = 0
    """Files fetched from other servers."""
    num_cached_files: int = 0
    """Files served from the cache, or from a fetch that another request had started."""
    was_decoded: bool = False
    """Whether the medium was served decoded from the cache, or from a decode that another request had started."""

    @property
    def had_files(self) -> bool:
        """Files were cached, and none had to be fetched."""
        return self.num_cached_files > 0 and self.num_fetched == 0


@dataclass(slots=True, kw_only=True)
class MediaUsage:
    """Work done to load the media of one request."""

    num_fetched: int = 0
    """Files fetched from other servers."""
    num_fetch_cache_hits: int = 0
    """Files served from the cache, or from a fetch that another request had started."""
    num_decoded: int = 0
    """Media decoded."""
    num_decode_cache_hits: int = 0
    """Media served decoded from the cache, or from a decode that another request had started."""
    fetch_waits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(begin, end) of each wait for a file, in seconds of `time.monotonic`."""
    decode_waits: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(begin, end) of each wait for a decoded medium, in the same seconds."""
    origins: list[MediumOrigin] = field(default_factory=list[MediumOrigin])
    """Origin of each medium, in the order of the request."""

    def __add__(self, other: "MediaUsage") -> "MediaUsage":
        """Returns the work of both."""
        names = (each.name for each in fields(self))
        return MediaUsage(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def fetch_seconds(self) -> float:
        """Time spent waiting for files from other servers, summed over files."""
        return sum(end - begin for begin, end in self.fetch_waits)

    @property
    def decode_seconds(self) -> float:
        """Time spent waiting for media to be decoded, summed over media."""
        return sum(end - begin for begin, end in self.decode_waits)

    @property
    def num_media(self) -> int:
        """Number of media loaded."""
        return self.num_decoded + self.num_decode_cache_hits


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMedia:
    """The media of one request while the request is served."""

    namespace: str
    """Cache namespace, in which the server has put together the tenant and the request's `cache_salt`."""
    client: str = ""
    """Whose request it is: clients share decoders, fetches and memory."""
    reservation: MemoryReservation
    usage: MediaUsage
    """Updated while the media are loaded."""
    origin: MediumOrigin = field(default_factory=MediumOrigin)
    """Origin of the medium that is being loaded; updated meanwhile."""

    def for_medium(self, origin: MediumOrigin | None = None) -> "RequestMedia":
        """Returns a copy with which the request's next medium is loaded. `origin`: that of a page's document."""
        origin = replace(origin) if origin is not None else MediumOrigin()
        self.usage.origins.append(origin)
        return replace(self, origin=origin)

    def count_fetch(self, *, is_cache_hit: bool) -> None:
        """Counts one file."""
        self.usage.num_fetch_cache_hits += is_cache_hit
        self.usage.num_fetched += not is_cache_hit
        self.origin.num_cached_files += is_cache_hit
        self.origin.num_fetched += not is_cache_hit

    def count_named(self, num_files: int) -> None:
        """Counts the cached files of a medium that the request names by its uuid."""
        self.origin.num_cached_files += num_files

    def count_decoding(self, *, is_cache_hit: bool) -> None:
        """Counts one media input."""
        self.usage.num_decode_cache_hits += is_cache_hit
        self.usage.num_decoded += not is_cache_hit
        self.origin.was_decoded = is_cache_hit


@contextmanager
def timed(waits: list[tuple[float, float]]) -> Generator[None]:
    """Adds the time of a block to the waits for a file or for decoded media."""
    began = monotonic()
    try:
        yield
    finally:
        waits.append((began, monotonic()))
