"""Files of this host that clients may name, under one folder that its operator has chosen. Knows no formats.

A link may lead from one place in the folder to another, and never out of it. What a path leads to is found first and
then opened step by step without following any link, so nothing changes between the check and the reading.
Messages do not tell what there is outside the folder.
"""

import os
import stat
from pathlib import Path, PurePosixPath

from glimpse.media.errors import MediaError, MediaErrorCode

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer would hold us up
_CHUNK_BYTES = 1 << 20


class LocalFiles:
    """The files under one folder."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError for what is no folder."""
        self._named = PurePosixPath(os.path.abspath(folder))  # noqa: PTH100 - as it is called, its links not followed
        self._folder = Path(os.path.realpath(folder))
        if not self._folder.is_dir():
            raise ValueError(f"{folder} is not a folder")

    def read(self, path: PurePosixPath, *, max_bytes: int) -> bytes:
        """Reads a file; blocks.

        Args:
            path: Absolute, as the host's other programs call it.
            max_bytes: The largest file.

        Raises:
            MediaError: URL_REFUSED outside of the folder, FETCH_FAILED where there is no such file, TOO_LARGE.
        """
        try:
            descriptor = _open(self._folder, self._steps(path))
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

    def _steps(self, path: PurePosixPath) -> tuple[str, ...]:
        """From the folder to the file, free of links when they were looked at."""
        if ".." in path.parts:
            raise _refusal()
        # Nothing outside is looked at: not even how long that takes tells what there is.
        for root in (self._named, self._folder):
            if path.is_relative_to(root):
                found = os.path.realpath(self._folder / path.relative_to(root))
                if not Path(found).is_relative_to(self._folder):
                    raise _refusal()
                return Path(found).relative_to(self._folder).parts
        raise _refusal()


def _open(folder: Path, steps: tuple[str, ...]) -> int:
    """A descriptor of what is at the end of the steps."""
    current = os.open(folder, _FOLDER)
    for index, step in enumerate(steps):
        try:
            following = os.open(step, _FILE if index == len(steps) - 1 else _FOLDER, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _read(descriptor: int, max_bytes: int) -> bytes:
    """The whole file, which may grow meanwhile. Raises MediaError (TOO_LARGE)."""
    data = bytearray()
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:
            raise MediaError(MediaErrorCode.TOO_LARGE, f"the medium is larger than {max_bytes} bytes")
    return bytes(data)


def _refusal() -> MediaError:
    message = "media are not read from this path; only from under the folder that is allowed"
    return MediaError(MediaErrorCode.URL_REFUSED, message)


def _failure() -> MediaError:
    return MediaError(MediaErrorCode.FETCH_FAILED, "there is no file of this name that can be read")
