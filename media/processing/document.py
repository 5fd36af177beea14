"""Documents: which of their pages are read, and what is known of one before its pages are drawn."""

import sys
from dataclasses import dataclass

import msgspec

from glimpse.media.errors import MediaOptionError


class PageRange(msgspec.Struct, frozen=True, kw_only=True):
    """Pages of a document, numbered from 1."""

    first: int = 1
    last: int | None = None
    """None: the document's last."""

    def within(self, num_pages: int) -> range:
        """Returns the pages that a document of so many has."""
        return range(self.first, min(self.last or num_pages, num_pages) + 1)


def check_pages(pages: PageRange) -> None:
    """Raises MediaOptionError if no document has such pages."""
    if pages.last is not None and pages.last < pages.first:
        raise MediaOptionError("last_page", f"expected at least first_page, {pages.first}, got {pages.last}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPages:
    """An opened document."""

    num_pages: int
    """At least 1."""
    texts: tuple[str, ...] = ()
    """The text layers of pages, as far as they were asked for."""

    @property
    def num_bytes(self) -> int:
        """Memory of the texts."""
        return sum(map(sys.getsizeof, self.texts))
