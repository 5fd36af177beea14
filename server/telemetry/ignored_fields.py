"""Tells of fields that are accepted without effect: clients by a response header, operators once by the log."""

import re
from collections.abc import Sequence
from itertools import islice

import structlog

IGNORED_FIELDS_HEADER = "x-glimpse-ignored-fields"
"""The response header that lists the paths of a request's fields that have no effect, unknown ones among them."""
MAX_HEADER_CHARACTERS = 1024
"""Limits headers that list parts of a request, because clients may send any number of them."""
MAX_LOGGED_NAMES = 256
"""Limits the lines of the log: clients choose the names."""

_INDEX = re.compile(r"\[\d+\]")
_logged: set[str] = set()
_log = structlog.get_logger(__name__)


def ignored_fields_header(paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the header for these paths, and logs those that have not been logged; nothing if there are none."""
    if not paths:
        return ()
    _log_new(paths)
    return list_header(IGNORED_FIELDS_HEADER, paths)


def list_header(name: str, paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns a header that lists the paths, as many as fit; nothing if there are none."""
    if not paths:
        return ()
    text = ",".join(islice(paths, MAX_HEADER_CHARACTERS))
    if len(text) > MAX_HEADER_CHARACTERS:
        text = text[:MAX_HEADER_CHARACTERS].rpartition(",")[0] + ",..."
    return ((name, text),)


def _log_new(paths: Sequence[str]) -> None:
    for name in (_INDEX.sub("[]", path) for path in paths):
        if len(_logged) >= MAX_LOGGED_NAMES:
            return
        if name not in _logged:
            _logged.add(name)
            _log.warning("accepted a field without effect; later ones are not logged", field=name)
