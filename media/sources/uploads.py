"""Uploaded files: clients send a file once and refer to it by handle in later requests.

Files arrive in chunks. A file is stored only if it arrived completely, with the announced size and hash.
"""

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from glimpse.media.cache.lru import Lru
from glimpse.media.cache.memory_budget import MemoryBudget, MemoryReservation, MemoryShare
from glimpse.media.cache.store import MediaFile, file_digest
from glimpse.media.errors import MediaError, MediaErrorCode, too_large
from glimpse.media.sources.source import DEFAULT_MAX_VIDEO_BYTES

_HANDLE_BYTES = 24
_OVERHEAD_BYTES = 512
"""Estimated size of an upload without its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An uploaded file."""

    handle: str
    """Unguessable identifier that requests use."""
    file: MediaFile
    expires: float
    """Seconds since 1970-01-01 UTC. Later uploads may evict it sooner."""


class Uploads:
    """Stores the uploads of one event loop. A cache namespace never sees another one's uploads."""

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
            max_bytes: Limit for all uploads together; 0 disables uploads.
            ttl_seconds: Longest lifetime of an upload.
            memory_budget: Budget for the bytes of uploads in progress.
            max_file_bytes: Limit on one file.
            clock: Returns the seconds since 1970-01-01 UTC.
        """
        self.is_enabled = max_bytes > 0
        self._max_file_bytes = min(max_file_bytes, max_bytes - _OVERHEAD_BYTES)
        self._ttl_seconds = ttl_seconds
        self._in_flight = memory_budget
        self._clock = clock
        self._uploads = Lru[tuple[str, str], Upload](max_bytes=max_bytes, clock=clock)

    @property
    def num_bytes(self) -> int:
        """Size of all stored uploads."""
        return self._uploads.num_bytes

    @contextmanager
    def receive(
        self, *, digest: bytes, num_bytes: int | None, share: MemoryShare | None = None
    ) -> Generator["IncomingUpload"]:
        """Begins an upload with this SHA-256 and, if known, this size, whose bytes count in `share`.

        Raises MediaError (TOO_LARGE).
        """
        if num_bytes is not None and num_bytes > self._max_file_bytes:
            raise too_large(self._max_file_bytes, "an upload")
        with self._in_flight.reservation(share) as reservation:
            yield IncomingUpload(digest, num_bytes, max_bytes=self._max_file_bytes, reservation=reservation)

    def keep(self, namespace: str, file: MediaFile, *, ttl_seconds: float | None) -> Upload:
        """Stores a file for `ttl_seconds`, or for the server's limit if that is shorter or None is given."""
        self._uploads.drop_expired()
        seconds = min(self._ttl_seconds, ttl_seconds or self._ttl_seconds)
        handle = f"upload-{secrets.token_urlsafe(_HANDLE_BYTES)}"
        upload = Upload(handle=handle, file=file, expires=self._clock() + seconds)
        self._uploads.put((namespace, handle), upload, num_bytes=len(file.data) + _OVERHEAD_BYTES, seconds=seconds)
        return upload

    def find(self, namespace: str, handle: str) -> Upload | None:
        """Returns a stored upload."""
        return self._uploads.get((namespace, handle))

    def remove(self, namespace: str, handle: str) -> bool:
        """Removes an upload. Returns whether it existed."""
        return self.find(namespace, handle) is not None and self._uploads.drop((namespace, handle))

    def file(self, namespace: str, handle: str) -> MediaFile:
        """Returns an upload's file. Raises MediaError (NOT_CACHED)."""
        upload = self.find(namespace, handle)
        if upload is None:
            message = "the upload does not exist or has expired; upload the file again and use the new handle"
            if not self.is_enabled:
                message = "uploads are disabled on this server (--upload-cache-bytes 0); send the file itself"
            raise MediaError(MediaErrorCode.NOT_CACHED, message)
        return upload.file


class IncomingUpload:
    """An upload in progress."""

    def __init__(self, digest: bytes, num_bytes: int | None, *, max_bytes: int, reservation: MemoryReservation) -> None:
        self._digest = digest
        self._num_bytes = num_bytes
        self._max_bytes = max_bytes
        self._reservation = reservation
        self._data = bytearray()

    def append(self, chunk: bytes) -> None:
        """Adds a chunk. Raises MediaError: TOO_LARGE, UPLOAD_MISMATCH or OVERLOADED."""
        num_bytes = len(self._data) + len(chunk)
        if self._num_bytes is not None and num_bytes > self._num_bytes:
            raise _mismatch(f"expected {self._num_bytes} bytes as announced, got more")
        if num_bytes > self._max_bytes:
            raise too_large(self._max_bytes, "an upload")
        self._reservation.reserve(len(chunk))
        self._data += chunk

    async def finish(self) -> MediaFile:
        """Returns the file. Raises MediaError (UPLOAD_MISMATCH) unless it matches what was announced."""
        if self._num_bytes is not None and len(self._data) != self._num_bytes:
            raise _mismatch(f"expected {self._num_bytes} bytes as announced, got {len(self._data)}")
        if not self._data:
            raise _mismatch("expected at least 1 byte, got none")
        self._reservation.reserve(len(self._data))  # two copies exist for a moment
        data = bytes(self._data)
        digest = await file_digest(data)
        if digest != self._digest:
            raise _mismatch("the SHA-256 of the upload differs from the announced one")
        return MediaFile(digest=digest, data=data)


def _mismatch(message: str) -> MediaError:
    return MediaError(MediaErrorCode.UPLOAD_MISMATCH, message)
