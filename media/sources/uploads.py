"""Files that clients send once, ahead of the requests that are about them: handles, by whose they are.

A file is taken in piece by piece, and nothing of it stays unless all of it came, of the size and hash announced.
"""

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from glimpse.media.cache.lru import Lru
from glimpse.media.cache.memory_budget import MemoryBudget, MemoryReservation
from glimpse.media.cache.store import MediaFile, file_digest
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.source import DEFAULT_MAX_VIDEO_BYTES

_HANDLE_BYTES = 24
_OVERHEAD_BYTES = 512
"""Of an upload, beside its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that was uploaded."""

    handle: str
    """By which requests name it; nobody can guess it."""
    file: MediaFile
    expires: float
    """In seconds since 1970-01-01 UTC; it may go sooner where later uploads need its place."""


class Uploads:
    """Keeps uploads of one event loop. A tenant never finds another's."""

    def __init__(
        self,
        *,
        max_bytes: int,
        ttl_seconds: float,
        memory_budget: MemoryBudget,
        max_file_bytes: int = DEFAULT_MAX_VIDEO_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            max_bytes: of all that is kept; 0: no uploads are taken.
            ttl_seconds: for which each is kept at most.
            memory_budget: where the bytes of those that come in are held.
            max_file_bytes: of one file.
            clock: tells the seconds since 1970-01-01 UTC.
        """
        self.is_enabled = max_bytes > 0
        """Whether any uploads are taken."""
        self._max_file_bytes = min(max_file_bytes, max_bytes - _OVERHEAD_BYTES)
        self._ttl_seconds = ttl_seconds
        self._in_flight = memory_budget
        self._clock = clock
        self._kept = Lru[tuple[str, str], Upload](max_bytes=max_bytes, clock=clock)

    @property
    def num_bytes(self) -> int:
        """All that is kept."""
        return self._kept.num_bytes

    @contextmanager
    def receive(self, *, digest: bytes, num_bytes: int | None) -> Generator["IncomingUpload"]:
        """A file that comes in, of this SHA-256 and size, if that is known. Raises MediaError (TOO_LARGE)."""
        if num_bytes is not None and num_bytes > self._max_file_bytes:
            raise _too_large(self._max_file_bytes)
        with self._in_flight.reservation() as reservation:
            yield IncomingUpload(digest, num_bytes, max_bytes=self._max_file_bytes, reservation=reservation)

    def keep(self, namespace: str, file: MediaFile, *, ttl_seconds: float | None) -> Upload:
        """Keeps a file, for as long as is wished and allowed."""
        self._kept.drop_expired()
        seconds = min(self._ttl_seconds, ttl_seconds or self._ttl_seconds)
        handle = f"upload-{secrets.token_urlsafe(_HANDLE_BYTES)}"
        upload = Upload(handle=handle, file=file, expires=self._clock() + seconds)
        self._kept.put((namespace, handle), upload, num_bytes=len(file.data) + _OVERHEAD_BYTES, seconds=seconds)
        return upload

    def find(self, namespace: str, handle: str) -> Upload | None:
        """An upload that is kept."""
        return self._kept.get((namespace, handle))

    def remove(self, namespace: str, handle: str) -> bool:
        """Whether there was such an upload."""
        return self.find(namespace, handle) is not None and self._kept.drop((namespace, handle))

    def file(self, namespace: str, handle: str) -> MediaFile:
        """An upload's file. Raises MediaError (NOT_CACHED)."""
        upload = self.find(namespace, handle)
        if upload is None:
            message = "there is no such upload, or no longer; upload the file again, and use the new handle"
            if not self.is_enabled:
                message = "this server takes no uploads (--upload-cache-bytes 0); send the file itself"
            raise MediaError(MediaErrorCode.NOT_CACHED, message)
        return upload.file


class IncomingUpload:
    """A file that is coming in."""

    def __init__(self, digest: bytes, num_bytes: int | None, *, max_bytes: int, reservation: MemoryReservation) -> None:
        self._digest = digest
        self._num_bytes = num_bytes
        self._max_bytes = max_bytes
        self._hold = reservation
        self._data = bytearray()

    def take(self, chunk: bytes) -> None:
        """Adds a piece. Raises MediaError: TOO_LARGE, UPLOAD_MISMATCH, OVERLOADED."""
        num_bytes = len(self._data) + len(chunk)
        if self._num_bytes is not None and num_bytes > self._num_bytes:
            raise _mismatch(f"more than the {self._num_bytes} bytes announced have come")
        if num_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        self._hold.take(len(chunk))
        self._data += chunk

    async def finish(self) -> MediaFile:
        """The whole file. Raises MediaError (UPLOAD_MISMATCH) unless it is what was announced."""
        if self._num_bytes is not None and len(self._data) != self._num_bytes:
            raise _mismatch(f"{len(self._data)} of the {self._num_bytes} bytes announced have come")
        if not self._data:
            raise _mismatch("no bytes have come")
        self._hold.take(len(self._data))  # there are two of it for a moment
        data = bytes(self._data)
        digest = await file_digest(data)
        if digest != self._digest:
            raise _mismatch("the bytes that came have another SHA-256 than the one announced")
        return MediaFile(digest=digest, data=data)


def _mismatch(message: str) -> MediaError:
    return MediaError(MediaErrorCode.UPLOAD_MISMATCH, message)


def _too_large(max_bytes: int) -> MediaError:
    return MediaError(MediaErrorCode.TOO_LARGE, f"the upload is larger than {max_bytes} bytes")
