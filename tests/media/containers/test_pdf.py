"""Pages are drawn where the file says, at the resolution that is asked for; text layers are read in lines."""

from io import BytesIO

import PIL.Image
import PIL.ImageChops
import PIL.ImageStat
import pytest

from glimpse.media.containers.pdf import open_pdf
from glimpse.media.errors import MediaError, MediaErrorCode
from tests.media.images import encode, scene
from tests.media.pdfs import document, of_images, rectangle, stream, text

RED, GREEN, BLUE = (1, 0, 0), (0, 1, 0), (0, 0, 1)
_MANY = 64_000_000


def _render(data: bytes, number: int = 1, dpi: int | None = 72, max_pixels: int = _MANY) -> PIL.Image.Image:
    with open_pdf(data) as pdf:
        return pdf.render(number, dpi=dpi, max_pixels=max_pixels)


def _texts(data: bytes) -> list[str | None]:
    with open_pdf(data) as pdf:
        return [pdf.text(number, max_characters=100) for number in range(1, pdf.num_pages + 1)]


def test_what_is_drawn_stands_where_the_file_says() -> None:
    image = _render(document([rectangle(RED, 0, 100, 150, 100) + " " + rectangle(BLUE, 150, 0, 150, 100)]))
    assert (image.size, image.mode) == ((300, 200), "RGB")
    places = ((75, 50), (225, 150), (225, 50))
    assert [image.getpixel(place) for place in places] == [(255, 0, 0), (0, 0, 255), (255, 255, 255)]


def test_pages_are_numbered_in_order() -> None:
    data = document([rectangle(colour, 0, 0, 300, 200) for colour in (RED, GREEN, BLUE)])
    assert [_render(data, number).getpixel((9, 9)) for number in (1, 2, 3)] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


def test_a_turned_page_is_drawn_as_it_is_shown() -> None:
    image = _render(document([rectangle(RED, 0, 0, 150, 200)], entries="/Rotate 90"))
    assert image.size == (200, 300)
    assert [image.getpixel((100, y)) for y in (75, 225)] == [(255, 0, 0), (255, 255, 255)]


def test_a_cropped_page_shows_its_part() -> None:
    assert _render(document([""], entries="/CropBox [100 100 200 150]")).size == (100, 50)


def test_what_a_scanner_writes_comes_back() -> None:
    images = [scene(200, 120, seed).convert("RGB") for seed in (1, 2)]
    data = of_images(images)
    for number, image in enumerate(images, 1):
        scanned = PIL.Image.open(BytesIO(encode(image, "JPEG")))
        difference = PIL.ImageStat.Stat(PIL.ImageChops.difference(_render(data, number), scanned))
        assert max(difference.rms) < 8


@pytest.mark.parametrize(
    ("dpi", "expected"), [(36, (150, 100)), (72, (300, 200)), (150, (625, 417)), (None, (625, 417))]
)
def test_resolution_is_in_pixels_per_inch(dpi: int | None, expected: tuple[int, int]) -> None:
    assert _render(document([""]), dpi=dpi).size == expected


@pytest.mark.parametrize("size", [(14_400, 14_400), (3, 2_000_000), (2_000_000, 3), (1e9, 1e9)])
def test_a_very_large_page_is_drawn_with_as_many_pixels_as_are_allowed(size: tuple[float, float]) -> None:
    width, height = _render(document([""], size=size), dpi=None, max_pixels=1_000_000).size
    assert 500_000 < width * height <= 1_000_000


def test_a_resolution_that_gives_too_many_pixels_is_refused() -> None:
    with pytest.raises(MediaError) as refused:
        _render(document([""]), dpi=600, max_pixels=1_000_000)
    assert refused.value.code == MediaErrorCode.TOO_LARGE
    assert refused.value.message == (
        "expected pages of at most 1000000 pixels, got 2500×1667 at 600 dpi; ask for a lower dpi"
    )


def test_text_is_read_in_lines_and_a_scan_has_none() -> None:
    assert _texts(document([text("Total: 42") + text("Thank you", y=50), ""])) == ["Total: 42\nThank you", ""]
    assert _texts(of_images([scene(60, 40).convert("RGB")])) == [""]


def test_text_outside_of_the_page_is_not_read() -> None:
    assert _texts(document([text("shown") + text("hidden", x=5000)])) == ["shown"]


def test_too_much_text_is_none() -> None:
    assert _texts(document([text("x" * 200)])) == [None]


def test_values_of_a_form_are_drawn_as_saved() -> None:
    look = stream(rectangle(RED, 0, 0, 100, 50).encode(), b"/Type /XObject /Subtype /Form /BBox [0 0 100 50]")
    field = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (name) /F 4 /Rect [100 50 200 100] /AP << /N 7 0 R >> >>"
    form = "/AcroForm << /Fields [6 0 R] >>"
    data = document([""], entries="/Annots [6 0 R]", catalog=form, further=[field, look])
    assert _render(data).getpixel((150, 125)) == (255, 0, 0)


def test_bytes_before_the_header_are_skipped() -> None:
    assert _render(b"\r\n junk \n" + document([rectangle(RED, 0, 0, 300, 200)])).getpixel((9, 9)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (b"", MediaErrorCode.INVALID_MEDIA, "expected a PDF document, got 0 bytes"),
        (b"\x89PNG\r\n\x1a\n", MediaErrorCode.UNSUPPORTED_FORMAT, "expected a PDF document, got a PNG image"),
        (
            b"PK\x03\x04",
            MediaErrorCode.UNSUPPORTED_FORMAT,
            "expected a PDF document, got an office document or an archive; save it as PDF",
        ),
        (b"%PDF-1.7\n", MediaErrorCode.INVALID_MEDIA, "the document is corrupt or truncated"),
        (document([]), MediaErrorCode.INVALID_MEDIA, "the document is corrupt or truncated"),
    ],
)
def test_other_files_are_refused(data: bytes, code: MediaErrorCode, message: str) -> None:
    with pytest.raises(MediaError) as refused:
        _render(data)
    assert (refused.value.code, refused.value.message) == (code, message)
