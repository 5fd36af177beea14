"""A file that is read again when it changes, for settings that take effect without a restart."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from glimpse.identity.errors import IdentityConfigError

_logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Polling also notices files that are replaced by renaming a link, as Kubernetes does with secrets."""

_T = TypeVar("_T")


class WatchedFile(Generic[_T]):
    """The parsed content of a file. If a change cannot be used, the last content that could be stays in effect."""

    def __init__(self, path: Path, parse: Callable[[str, str], _T]) -> None:
        """Reads the file. `parse` takes its text and its name.

        Raises:
            IdentityConfigError: the file cannot be read, or `parse` refuses it.
        """
        self._path = path
        self._parse = parse
        self._data = self._read()
        self.value = self._parse_data(self._data)
        self._refusal = ""

    async def watch(self) -> None:
        """Reads the file again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Takes over what the file contains now, if that has changed and can be used. Logs what it did."""
        try:
            data = self._read()
            if data == self._data:
                self._refusal = ""
                return
            self._data = data
            self.value = self._parse_data(data)
        except IdentityConfigError as error:
            if str(error) != self._refusal:  # once, however long it stays so
                _logger.warning("%s; what was read before stays in effect", error)
            self._refusal = str(error)
        else:
            self._refusal = ""
            _logger.info("'%s' was read again", self._path)

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise IdentityConfigError(f"'{self._path}': expected a readable file: {error.strerror}") from error

    def _parse_data(self, data: bytes) -> _T:
        try:
            return self._parse(data.decode(), str(self._path))
        except UnicodeDecodeError as error:
            raise IdentityConfigError(f"'{self._path}': expected UTF-8 text") from error


def watch_flag(flag: str, path: Path, parse: Callable[[str, str], _T]) -> WatchedFile[_T]:
    """Returns the file that a flag names. Raises IdentityConfigError, which names the flag."""
    try:
        return WatchedFile(path.expanduser().absolute(), parse)
    except IdentityConfigError as error:
        raise IdentityConfigError(f"'{flag}': {error}") from error
