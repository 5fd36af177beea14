"""Reading image files: corruption, dimensions, and conversion of all pixel modes to RGB."""

import struct
import zlib

import numpy as np
import PIL.Image
import pytest
from PIL.ExifTags import Base
from PIL.Image import Transpose

from glimpse.media.containers.sniff import spelling
from glimpse.media.containers.still import load_pixels, open_image
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.rgb import Colour, upright_rgb
from tests.media.images import animation, encode, png_chunk, png_header, scene
from tests.media.videos import greys

WHITE = (255, 255, 255)


def decode(data: bytes, background: Colour = WHITE) -> PIL.Image.Image:
    image = open_image(data, max_pixels=64_000_000)
    load_pixels(image)
    return upright_rgb(image, background)


def pixel(image: PIL.Image.Image, x: int = 0, y: int = 0) -> object:
    assert image.mode == "RGB"
    return image.getpixel((x, y))


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (64, 48)])
@pytest.mark.parametrize(
    ("file_format", "options"), [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})]
)
def test_opaque_rgb_is_bit_identical(size: tuple[int, int], file_format: str, options: dict[str, bool]) -> None:
    image = scene(*size)
    assert decode(encode(image, file_format, **options)).tobytes() == image.tobytes()


def test_decodes_a_jpeg() -> None:
    data = encode(scene(33, 21), "JPEG")
    assert decode(data).size == (33, 21)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_refuses_files_truncated_at_any_length(file_format: str) -> None:
    data = encode(scene(64, 64), file_format)
    for length in (12, 30, len(data) // 4, len(data) // 2, len(data) * 3 // 4):
        with pytest.raises(MediaError) as caught:
            decode(data[:length])
        assert caught.value.code == MediaErrorCode.INVALID_MEDIA
        assert caught.value.message == f"the {spelling(file_format)} is corrupt or truncated"


def test_refuses_a_png_with_corrupt_pixels() -> None:
    data = bytearray(encode(scene(64, 64), "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(MediaError, match="the PNG is corrupt") as caught:
        decode(bytes(data))
    assert caught.value.code == MediaErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_refuses_garbage_after_the_magic_bytes(file_format: str) -> None:
    data = encode(scene(16, 16), file_format)
    with pytest.raises(MediaError) as caught:
        decode(data[:12] + b"rubbish" * 20)
    assert caught.value.code in (MediaErrorCode.INVALID_MEDIA, MediaErrorCode.TOO_LARGE)


def test_checks_dimensions_in_the_header() -> None:
    data = png_header(20000, 20000)
    assert len(data) < 100
    with pytest.raises(MediaError, match="20000×20000") as caught:
        open_image(data, max_pixels=64_000_000)
    assert caught.value.code == MediaErrorCode.TOO_LARGE


def test_checks_a_gif_frame_larger_than_its_screen() -> None:
    data = bytearray(encode(PIL.Image.new("P", (2, 2)), "GIF"))
    frame = data.index(b",")  # the image descriptor: left, top, width, height
    data[frame + 5 : frame + 9] = struct.pack("<HH", 60000, 50000)
    with pytest.raises(MediaError, match="60000×50000") as caught:
        open_image(bytes(data), max_pixels=64_000_000)
    assert caught.value.code == MediaErrorCode.TOO_LARGE


def test_max_pixels_is_inclusive() -> None:
    assert open_image(encode(scene(40, 25), "PNG"), max_pixels=1000).size == (40, 25)
    with pytest.raises(MediaError, match="41×25"):
        open_image(encode(scene(41, 25), "PNG"), max_pixels=1000)


@pytest.mark.parametrize("background", [WHITE, (0, 0, 0), (10, 200, 30)])
@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
def test_transparent_pixels_show_the_background(file_format: str, background: Colour) -> None:
    image = PIL.Image.new("RGBA", (4, 1))
    for x, colour in enumerate([(255, 0, 0, 0), (255, 0, 0, 255), (255, 0, 0, 51), (0, 0, 0, 0)]):
        image.putpixel((x, 0), colour)
    options = {"lossless": True, "exact": True} if file_format == "WEBP" else {}
    result = decode(encode(image, file_format, **options), background)
    blend = tuple(round((top * 51 + below * 204) / 255) for top, below in zip((255, 0, 0), background, strict=True))
    assert [pixel(result, x) for x in range(4)] == [background, (255, 0, 0), blend, background]


def test_transparent_greyscale_shows_the_background() -> None:
    image = PIL.Image.new("LA", (2, 1), (0, 0))
    image.putpixel((1, 0), (70, 255))
    result = decode(encode(image, "PNG"))
    assert (pixel(result, 0), pixel(result, 1)) == (WHITE, (70, 70, 70))


@pytest.mark.parametrize("transparency", [1, b"\xff\x00\xff"], ids=["one index", "a table"])
def test_transparent_palette_entries_show_the_background(transparency: int | bytes) -> None:
    image = PIL.Image.new("P", (3, 1))
    image.putpalette([1, 2, 3, 40, 50, 60, 7, 8, 9])
    image.putdata([0, 1, 2])
    result = decode(encode(image, "PNG", transparency=transparency))
    assert [pixel(result, x) for x in range(3)] == [(1, 2, 3), WHITE, (7, 8, 9)]


def test_transparent_rgb_colour_shows_the_background() -> None:
    image = PIL.Image.new("RGB", (2, 1), (9, 8, 7))
    image.putpixel((1, 0), (1, 1, 1))
    result = decode(encode(image, "PNG", transparency=(9, 8, 7)))
    assert (pixel(result, 0), pixel(result, 1)) == (WHITE, (1, 1, 1))


def two_pixels(row: bytes, *, bits: int, colour_type: int, key: list[int]) -> list[object]:
    """Returns the pixels of a PNG of these two, one value of which is transparent."""
    header = struct.pack(">IIBBBBB", 2, 1, bits, colour_type, 0, 0, 0)
    transparent = struct.pack(f">{len(key)}H", *key)
    chunks = (b"IHDR", header), (b"tRNS", transparent), (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")
    result = decode(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks))
    return [pixel(result, x) for x in range(2)]


def test_a_transparent_sixteen_bit_colour_shows_the_background() -> None:
    def shown(values: list[int], colour_type: int, key: list[int]) -> list[object]:
        return two_pixels(struct.pack(f">{len(values)}H", *values), bits=16, colour_type=colour_type, key=key)

    assert shown([0x1234, 0x1235], 0, [0x1234]) == [WHITE, (0x12, 0x12, 0x12)]
    assert shown([0x102, 0x203, 0x304, 0x902, 0x203, 0x304], 2, [0x102, 0x203, 0x304]) == [WHITE, (9, 2, 3)]
    assert shown([0x102, 0x203, 0x304, 0x102, 0x203, 0x305], 2, [0x102, 0x203, 0x304]) == [WHITE, (1, 2, 3)]
    assert shown([0, 0, 5, 0, 0, 0x512], 2, [0, 0, 5]) == [WHITE, (0, 0, 5)]


@pytest.mark.parametrize(("bits", "row", "key", "grey"), [(1, 0x80, 1, 0), (2, 0x90, 2, 85), (4, 0x73, 7, 51)])
def test_a_transparent_grey_of_few_bits_shows_the_background(bits: int, row: int, key: int, grey: int) -> None:
    assert two_pixels(bytes([row]), bits=bits, colour_type=0, key=[key]) == [WHITE, (grey, grey, grey)]


def test_converts_cmyk() -> None:
    image = PIL.Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red = np.asarray(decode(encode(image, "JPEG", quality=100)))
    assert np.abs(red.astype(int) - (255, 0, 0)).max() <= 3
    assert pixel(decode(encode(image, "TIFF"))) == (255, 0, 0)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_sixteen_bit_greyscale_keeps_the_high_byte(file_format: str) -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    result = decode(encode(PIL.Image.fromarray(values), file_format))
    assert [pixel(result, x) for x in range(5)] == [(v, v, v) for v in (0, 0, 1, 128, 255)]


def test_sixteen_bit_greyscale_may_begin_with_white() -> None:
    data = encode(PIL.Image.fromarray(np.array([[0, 0x1234, 65535]], np.uint16)), "TIFF")
    black, white = (struct.pack("<HHII", 262, 3, 1, value) for value in (1, 0))
    assert black in data
    assert [pixel(decode(data.replace(black, white)), x) for x in range(3)] == [(v, v, v) for v in (255, 0xED, 0)]


def test_converts_one_and_eight_bit_greyscale() -> None:
    black_and_white = PIL.Image.new("1", (2, 1))
    black_and_white.putpixel((1, 0), 1)
    result = decode(encode(black_and_white, "PNG"))
    assert (pixel(result, 0), pixel(result, 1)) == ((0, 0, 0), WHITE)
    assert pixel(decode(encode(PIL.Image.new("L", (1, 1), 77), "PNG"))) == (77, 77, 77)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_refuses_unsupported_pixel_modes(mode: str) -> None:
    with pytest.raises(MediaError, match=f"mode {mode}") as caught:
        decode(encode(PIL.Image.new(mode, (4, 4)), "TIFF"))
    assert caught.value.code == MediaErrorCode.UNSUPPORTED_FORMAT


@pytest.mark.parametrize(("file_format", "title"), [("GIF", "GIF"), ("WEBP", "WebP"), ("PNG", "PNG"), ("AVIF", "AVIF")])
def test_an_animation_is_not_a_still_image(file_format: str, title: str) -> None:
    words = f"got an animated {title}; send it as a video, or one frame as PNG"
    with pytest.raises(MediaError, match=words) as caught:
        open_image(animation(greys(3), file_format), max_pixels=10_000)
    assert caught.value.code == MediaErrorCode.UNSUPPORTED_FORMAT


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_a_single_frame_is_a_still_image(file_format: str) -> None:
    assert decode(animation(greys(1), file_format)).size == (64, 48)


def test_pages_are_not_one_image() -> None:
    page = scene(40, 30)
    with pytest.raises(MediaError, match="got a TIFF of several; send each page as an image") as caught:
        open_image(encode(page, "TIFF", save_all=True, append_images=[page]), max_pixels=10_000)
    assert caught.value.code == MediaErrorCode.UNSUPPORTED_FORMAT


def test_a_smaller_version_of_an_image_is_not_a_page() -> None:
    page = scene(40, 30)
    data = encode(page, "TIFF", save_all=True, append_images=[scene(20, 15)], tiffinfo={254: 0})
    kind = data.rindex(struct.pack("<HHI", 254, 4, 1)) + 8
    assert decode(data[:kind] + b"\1" + data[kind + 1 :]).tobytes() == page.tobytes()


# The transformation of an upright image that each EXIF orientation undoes.
TRANSFORMATIONS = {
    1: None,
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", TRANSFORMATIONS)
def test_applies_every_exif_orientation(orientation: int, file_format: str) -> None:
    upright = scene(12, 7)
    transformation = TRANSFORMATIONS[orientation]
    stored = upright if transformation is None else upright.transpose(transformation)
    exif = PIL.Image.Exif()
    exif[int(Base.Orientation)] = orientation
    options = {"lossless": True} if file_format == "WEBP" else {}
    assert decode(encode(stored, file_format, exif=exif, **options)).tobytes() == upright.tobytes()


def test_applies_the_exif_orientation_of_a_jpeg() -> None:
    exif = PIL.Image.Exif()
    exif[int(Base.Orientation)] = 6
    stored = scene(40, 24)
    turned = decode(encode(stored, "JPEG", exif=exif))
    assert turned.tobytes() == decode(encode(stored, "JPEG")).transpose(Transpose.ROTATE_270).tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # pytest overrides the module's warning filters
@pytest.mark.parametrize(
    "exif",
    [
        b"Exif\0\0II*\0\xff\xff\xff\x7f",
        b"Exif\0\0MM",
        b"Exif\0\0rubbish",
        b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 0x0112, 3, 1, 99) + b"\0\0\0\0",
        b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHII", 9, 0x0112, 3, 1 << 30, 99),
    ],
)
def test_ignores_corrupt_exif(exif: bytes) -> None:
    plain = encode(scene(20, 10), "JPEG")
    assert decode(encode(scene(20, 10), "JPEG", exif=exif)).tobytes() == decode(plain).tobytes()


def test_refuses_a_palette_image_without_palette() -> None:
    data = encode(scene(16, 16).quantize(4), "PNG")
    start = data.index(b"PLTE") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4])
    image = open_image(data[:start] + data[end:], max_pixels=10_000)
    load_pixels(image)
    with pytest.raises(MediaError, match="palette") as caught:
        upright_rgb(image, (255, 255, 255))
    assert caught.value.code is MediaErrorCode.INVALID_MEDIA
