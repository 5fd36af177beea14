"""Detection of file formats by their first bytes."""

import PIL.Image
import pytest

from glimpse.media.containers.sniff import ImageFormat, sniff_image
from glimpse.media.errors import MediaError, MediaErrorCode
from tests.media.heif import heic
from tests.media.images import encode


@pytest.mark.parametrize("image_format", list(ImageFormat))
def test_detects_every_image_format(image_format: ImageFormat) -> None:
    image = PIL.Image.new("RGB", (64, 64), (200, 10, 30))
    data = heic(image) if image_format is ImageFormat.HEIC else encode(image, image_format)
    assert sniff_image(data) == image_format


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
        (b"\0\0\0\x18ftyphevc\0\0\0\0", "a sequence of HEIC images; send one as an image, or all as an MP4 video"),
        (
            b"\0\0\0\x18ftypmsf1\0\0\0\0hevcheic",
            "a sequence of HEIC images; send one as an image, or all as an MP4 video",
        ),
        (
            b"\0\0\0\x14ftypmif1\0\0\0\0mif1",
            "a HEIF image of another codec than HEVC and AV1; convert it to JPEG or PNG",
        ),
        (b"\0\0\1\0\1\0", "an ICO image; convert it to PNG"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image; convert it to JPEG or PNG"),
        (b"\xff\x4f\xff\x51", "a JPEG 2000 image; convert it to JPEG or PNG"),
        (b"\xff\x0a", "a JPEG XL image; convert it to JPEG or PNG"),
        (b"%PDF-1.7\n", "a PDF document; send it as a document"),
        (b"junk\n%PDF-1.7\n", "a PDF document; send it as a document"),
        (b"PK\x03\x04", "an office document or an archive; save it as PDF"),
        (b"<!DOCTYPE html><html>", "an HTML page; send the file that the page shows"),
        (b"\n  <HTML lang=en>", "an HTML page; send the file that the page shows"),
        (b"<svg xmlns='x'>", "an SVG drawing; render it to PNG"),
        (b"<?xml version='1.0'?>\n<!-- by hand --><svg/>", "an SVG drawing; render it to PNG"),
        (b"<?xml version='1.0'?><MPD/>", "an XML document"),
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


@pytest.mark.parametrize(
    ("brands", "image_format"),
    [
        (b"heic\0\0\0\0mif1heic", ImageFormat.HEIC),
        (b"heix\0\0\0\0mif1", ImageFormat.HEIC),
        (b"mif1\0\0\0\0mif1heic", ImageFormat.HEIC),
        (b"avif\0\0\0\0mif1miaf", ImageFormat.AVIF),
        (b"avis\0\0\0\0msf1", ImageFormat.AVIF),
        (b"mif1\0\0\0\0mif1avif", ImageFormat.AVIF),
    ],
)
def test_reads_the_codec_of_heif_files_from_their_brands(brands: bytes, image_format: ImageFormat) -> None:
    assert sniff_image(len(brands + bytes(8)).to_bytes(4, "big") + b"ftyp" + brands) == image_format
