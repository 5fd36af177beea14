"""Reading of document files: what they are, and their pages as images."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from glimpse.media.containers.pdf import open_pdf
from glimpse.media.decoding.jobs import DocumentJob, PageJob
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.document import DocumentPages
from glimpse.media.processing.image import image_pixels
from glimpse.media.processing.sizing.placement import ImagePlacement

MAX_CHARACTERS = 4_000_000
"""Limit on the text layers of all pages that are read: more than any context window."""


def document_from_file(data: bytes, job: DocumentJob) -> DocumentPages:
    """Does a `DocumentJob`.

    Raises:
        MediaError: The file cannot be used, or has too much text.
    """
    texts: list[str] = []
    num_left = MAX_CHARACTERS
    with open_pdf(data) as pdf:
        for number in job.texts_of(pdf.num_pages):
            text = pdf.text(number, max_characters=num_left)
            if text is None:
                message = f"expected at most {MAX_CHARACTERS} characters of text, got more; ask for fewer pages"
                raise MediaError(MediaErrorCode.TOO_LARGE, message)
            num_left -= len(text)
            texts.append(text)
        return DocumentPages(num_pages=pdf.num_pages, texts=tuple(texts))


def page_from_file(
    data: bytes, job: PageJob, *, max_decoded_pixels: int, on_size: Callable[[int], None] = lambda _: None
) -> tuple[npt.NDArray[np.uint8], ImagePlacement]:
    """Does a `PageJob`: returns the page's pixels and their placement, as `image_pixels` does.

    Args:
        max_decoded_pixels: Limit on the page as it is drawn, before it is resized.
        on_size: Called with the memory that it takes, before it is drawn; may raise MediaError.

    Raises:
        MediaError: The page cannot be used.
    """
    with open_pdf(data) as pdf:
        image = pdf.render(job.number, dpi=job.dpi, max_pixels=max_decoded_pixels, on_size=on_size)
    return image_pixels(image, job.processing)
