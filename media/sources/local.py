"""Files of this host that `file:` URLs may name, below one folder that the operator chooses.

Symbolic links may point to other places below the folder, never outside. The path is resolved first and then opened
component by component without following links, so that it cannot change between the check and the read. Messages
reveal nothing about what exists outside the folder.
"""

import os
import stat
from pathlib import Path, PurePosixPath

from glimpse.media.errors import MediaError, MediaErrorCode, too_large

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer would block
_CHUNK_BYTES = 1 << 20


class LocalFiles:
    """Reads files below one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError if the path is not a folder."""
        self._named = PurePosixPath(os.path.abspath(folder))  # noqa: PTH100 - links are not resolved
        self._folder = Path(os.path.realpath(folder))
        if not self._folder.is_dir():
            raise ValueError(f"expected a folder, got {folder}")

    def read(self, path: PurePosixPath, *, max_bytes: int) -> bytes:
        """Reads a file; blocks.

        Args:
            path: Absolute path.
            max_bytes: Limit on the file's size.

        Raises:
            MediaError: URL_REFUSED outside the folder, FETCH_FAILED if there is no such file, or TOO_LARGE.
        """
        try:
            descriptor = _open(self._folder, self._components(path))
        except (OSError, ValueError) as error:  # ValueError: a zero byte
            raise _failure() from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _failure()
            return _read(descriptor, max_bytes)
        except OSError as error:
            raise _failure() from error
        finally:
            os.close(descriptor)

    def _components(self, path: PurePosixPath) -> tuple[str, ...]:
        """Returns the path from the folder to the file with links resolved."""
        if ".." in path.parts:
            raise _refusal()
        # Nothing outside the folder is accessed, so that not even the time it takes reveals what exists there.
        for root in (self._named, self._folder):
            if path.is_relative_to(root):
                found = os.path.realpath(self._folder / path.relative_to(root))
                if not Path(found).is_relative_to(self._folder):
                    raise _refusal()
                return Path(found).relative_to(self._folder).parts
        raise _refusal()


def _open(folder: Path, components: tuple[str, ...]) -> int:
    """Returns a file descriptor."""
    current = os.open(folder, _FOLDER)
    for index, component in enumerate(components):
        try:
            following = os.open(component, _FILE if index == len(components) - 1 else _FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Reads the whole file, which may grow meanwhile. Raises MediaError (TOO_LARGE)."""
    data = bytearray()
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:
            raise too_large(max_bytes)
    return bytes(data)


def _refusal() -> MediaError:
    return MediaError(MediaErrorCode.URL_REFUSED, "expected a file: URL below the folder that the server allows")


def _failure() -> MediaError:
    return MediaError(MediaErrorCode.FETCH_FAILED, "the file does not exist or cannot be read")
