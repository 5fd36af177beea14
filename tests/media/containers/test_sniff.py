"""Detection of file formats by their first bytes."""

from io import BytesIO

import PIL.Image
import pytest

from glimpse.media.containers.sniff import ImageFormat, sniff_image
from glimpse.media.errors import MediaError, MediaErrorCode


@pytest.mark.parametrize("image_format", list(ImageFormat))
def test_detects_every_image_format(image_format: ImageFormat) -> None:
    file = BytesIO()
    PIL.Image.new("RGB", (5, 4), (200, 10, 30)).save(file, image_format)
    assert sniff_image(file.getvalue()) == image_format


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2mp41", "an MP4 video"),
        (b"\0\0\0\x20ftypmp42", "an MP4 video"),
        (b"\0\0\0\x14ftypqt  \0\0\x02\0", "a QuickTime video"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81", "a WebM or Matroska video"),
        (b"RIFF\x24\0\0\0AVI LIST", "an AVI video"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "a WAV file"),
        (b"ID3\x04\0\0", "an MP3 file"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "an AVIF image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC image"),
        (b"%PDF-1.7\n", "a PDF document"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"\n  <HTML lang=en>", "an HTML page"),
        (b"<svg xmlns='x'>", "an SVG drawing"),
        (b"<?xml version='1.0'?><svg/>", "an XML document"),
        (b"hello there", "an unknown format"),
        (b"\xff\xd8", "an unknown format"),
        (b"RIFF\x24\0\0\0", "an unknown format"),
    ],
)
def test_refuses_other_formats_by_name(data: bytes, what: str) -> None:
    with pytest.raises(MediaError, match=f"got {what}$") as caught:
        sniff_image(data)
    assert caught.value.code == MediaErrorCode.UNSUPPORTED_FORMAT


def test_refuses_an_empty_file() -> None:
    with pytest.raises(MediaError) as caught:
        sniff_image(b"")
    assert caught.value.code == MediaErrorCode.INVALID_MEDIA
