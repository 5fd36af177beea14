"""Reading of PDF documents with PDFium: pages as images, and their text layer.

PDFium gets the bytes and nothing else. It is built without JavaScript and XFA, and forms are drawn as they are saved:
nothing in a document runs. It takes one call at a time.
"""

import math
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import PIL.Image

from glimpse.media.containers.decode_errors import report_decode_errors
from glimpse.media.containers.sniff import sniff_document
from glimpse.media.errors import MediaError, MediaErrorCode

DEFAULT_DPI = 150
"""Resolution of pages without one. It is lower for pages that would have too many pixels."""
_POINTS_PER_INCH = 72
_BELOW_ONE = 1 - 1e-6
"""Sides are rounded up, after products that may be slightly too large."""
_PIXEL_BYTES = 8
"""In PDFium and, copied, in Pillow."""
_LOCKED = (4, 5)
"""PDFium's errors about a password, and about another kind of encryption."""
_CLEAN = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {2: "-", 0xFFFE: "-"}
"""PDFium ends lines with \\r\\n, and marks hyphens at their ends. Other control characters are no text."""

_lock = threading.Lock()


class PdfFile:
    """An opened document. Pages are numbered from 1."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self.num_pages = len(document)

    def render(
        self, number: int, *, dpi: int | None, max_pixels: int, on_size: Callable[[int], None] = lambda _: None
    ) -> PIL.Image.Image:
        """Returns a page as it is shown: RGB.

        Args:
            dpi: Pixels per inch. None: `DEFAULT_DPI`, or what `max_pixels` allows.
            on_size: Called with about how much memory the image takes, before it is drawn; may raise MediaError.

        Raises:
            MediaError: INVALID_MEDIA if the page is corrupt, TOO_LARGE for too many pixels.
        """
        with report_decode_errors(_name(number)), closing(self._document[number - 1]) as page:
            width, height = page.get_size()
            scale = _scale(width, height, dpi, max_pixels)
            on_size(math.ceil(_PIXEL_BYTES * width * height * scale**2))
            with closing(page.render(scale=scale, rev_byteorder=True)) as bitmap:
                return PIL.Image.fromarray(bitmap.to_numpy())

    def text(self, number: int, *, max_characters: int) -> str | None:
        """Returns the text layer of a page, in lines: empty if it has none, None if it has too many characters.

        Raises:
            MediaError: INVALID_MEDIA if the page is corrupt.
        """
        with (
            report_decode_errors(_name(number)),
            closing(self._document[number - 1]) as page,
            closing(page.get_textpage()) as layer,
        ):
            if layer.count_chars() > max_characters:
                return None
            return layer.get_text_bounded().translate(_CLEAN).strip()


@contextmanager
def open_pdf(data: bytes) -> Generator[PdfFile]:
    """Reads the structure of a document. Other threads wait until the block ends.

    Raises:
        MediaError: UNSUPPORTED_FORMAT for another format or an encrypted document, INVALID_MEDIA for a corrupt one.
    """
    sniff_document(data)
    with _lock, report_decode_errors("document"):
        pdfium = _pdfium()
        try:
            document = pdfium.PdfDocument(data)
        except pdfium.PdfiumError as error:
            if error.err_code in _LOCKED:
                message = "expected a document that opens without a password; save it without one"
                raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message) from error
            raise
        with closing(document):
            document.init_forms()  # else pages lack what was filled in
            yield PdfFile(document)


@cache
def _pdfium() -> Any:
    return import_module("pypdfium2")


def _name(number: int) -> str:
    return f"document's page {number}"


def _scale(width: float, height: float, dpi: int | None, max_pixels: int) -> float:
    """Returns the pixels per point of a page of this size in points. Raises MediaError: TOO_LARGE."""
    scale = (dpi or DEFAULT_DPI) / _POINTS_PER_INCH * _BELOW_ONE
    pixels = math.ceil(width * scale), math.ceil(height * scale)
    if math.prod(pixels) <= max_pixels:
        return scale
    if dpi is not None:
        got = f"{pixels[0]}×{pixels[1]} at {dpi} dpi"
        message = f"expected pages of at most {max_pixels} pixels, got {got}; ask for a lower dpi"
        raise MediaError(MediaErrorCode.TOO_LARGE, message)
    return (math.sqrt((width + height) ** 2 + 4 * width * height * (max_pixels - 1)) - width - height) / (
        2 * width * height
    )
