"""Logs what grammars do not ensure of what was asked for, each kind of it once."""

import logging
import re
from collections.abc import Iterable

_log = logging.getLogger(__name__)


class UnenforcedLog:
    """Remembers what has been logged: keywords of JSON Schemas and the fields they were in, so there are few."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def tell(self, paths: Iterable[str]) -> None:
        """Logs paths such as `tools[0].function.parameters#/properties/path/format`, without names of properties."""
        for path in paths:
            field, _, pointer = path.partition("#")
            kind = re.sub(r"\[\d+\]", "[]", field), pointer.rpartition("/")[2]
            if kind not in self._logged:
                self._logged.add(kind)
                what = f"the keyword {kind[1]!r}" if kind[1] else "a schema"
                _log.warning("%s: %s is not enforced; further cases are not logged", kind[0], what)
