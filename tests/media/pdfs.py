"""PDF files written by hand, object by object, and by Pillow."""

from collections.abc import Iterable, Sequence
from io import BytesIO

import PIL.Image

HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def pdf(*objects: bytes, trailer: bytes = b"") -> bytes:
    """Returns a document of these objects, numbered from 1. The first is the catalog."""
    file = BytesIO(b"%PDF-1.7\n")
    file.seek(0, 2)
    places: list[int] = []
    for number, body in enumerate(objects, 1):
        places.append(file.tell())
        file.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start = file.tell()
    entries = b"".join(b"%010d 00000 n \n" % place for place in places)
    file.write(b"xref\n0 %d\n0000000000 65535 f \n%b" % (len(objects) + 1, entries))
    size = len(objects) + 1
    file.write(b"trailer\n<< /Size %d /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start))
    return file.getvalue()


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(content), entries, content)


def document(
    contents: Sequence[str],
    *,
    size: tuple[float, float] = (300, 200),
    entries: str = "",
    catalog: str = "",
    further: Iterable[bytes] = (),
) -> bytes:
    """Returns a document with a page for each content stream. Fonts are named /F.

    Args:
        further: Objects after the others. The first has the number 4 + 2 · pages.
    """
    pages = range(4, 4 + 2 * len(contents), 2)
    kids = " ".join(f"{number} 0 R" for number in pages)
    shared = f"/MediaBox [0 0 {size[0]} {size[1]}] /Resources << /Font << /F 3 0 R >> >>"
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {catalog} >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} {shared} >>".encode(),
        HELVETICA,
    ]
    for number, content in zip(pages, contents, strict=True):
        objects.append(f"<< /Type /Page /Parent 2 0 R /Contents {number + 1} 0 R {entries} >>".encode())
        objects.append(stream(content.encode()))
    return pdf(*objects, *further)


def text(words: str, x: float = 20, y: float = 100, points: float = 24) -> str:
    """Returns operators that write words."""
    return f"BT /F {points} Tf {x} {y} Td ({words}) Tj ET"


def rectangle(colour: tuple[float, float, float], x: float, y: float, width: float, height: float) -> str:
    """Returns operators that fill a rectangle; colours are from 0 to 1, places from the lower left corner."""
    red, green, blue = colour
    return f"{red} {green} {blue} rg {x} {y} {width} {height} re f"


def of_images(images: Sequence[PIL.Image.Image], dpi: int = 72) -> bytes:
    """Returns a document that Pillow writes, as a scanner does, with an image on each page."""
    file = BytesIO()
    images[0].save(file, "PDF", save_all=True, append_images=images[1:], resolution=dpi)
    return file.getvalue()
