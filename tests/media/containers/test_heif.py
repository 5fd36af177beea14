"""HEIC and AVIF images: turned once, with transparency, 10 bits and tiles, and refused when they are damaged."""

import struct
from io import BytesIO

import av
import numpy as np
import PIL.Image
import pytest

from glimpse.media.containers.still import load_pixels, open_image
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.rgb import upright_rgb
from tests.media.heif import coded, grid, heic, mirror, rotation
from tests.media.images import encode, scene
from tests.media.videos import scheduling_policy_restored

SMOOTH = scene(12, 8).resize((128, 96), PIL.Image.Resampling.BICUBIC)
PIXELS = np.asarray(SMOOTH).astype(int)
WHITE = (255, 255, 255)


def decode(data: bytes) -> np.ndarray:
    image = open_image(data, max_pixels=1_000_000)
    load_pixels(image)
    return np.asarray(upright_rgb(image, WHITE)).astype(int)


def exif(orientation: int) -> bytes:
    tags = PIL.Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def assert_close(pixels: np.ndarray, expected: np.ndarray) -> None:
    """Colors go through YUV with half as many chroma samples."""
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).mean() < 4


@pytest.mark.parametrize("bits", [8, 10])
def test_decodes_heic(bits: int) -> None:
    assert_close(decode(heic(SMOOTH, bits=bits)), PIXELS)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turns_heic_once(quarters: int) -> None:
    """Phones write the rotation in the EXIF too, where it is only a copy."""
    for orientation in (b"", exif(6)):
        assert_close(decode(heic(SMOOTH, rotation(quarters), exif=orientation)), np.rot90(PIXELS, quarters))


def test_mirrors_heic() -> None:
    assert_close(decode(heic(SMOOTH, mirror(1))), PIXELS[:, ::-1])


def test_transparent_heic_shows_the_background() -> None:
    clear = SMOOTH.copy()
    alpha = PIL.Image.new("L", SMOOTH.size, 255)
    alpha.paste(0, (0, 0, 64, 96))
    clear.putalpha(alpha)
    pixels = decode(heic(clear, alpha=True))
    # The test's encoder squeezes opacity into 16 to 235.
    assert np.abs(pixels[:, 72:] - PIXELS[:, 72:]).mean() < 20
    assert pixels[:, :56].mean() > 235


def test_decodes_the_tiles_of_a_phone() -> None:
    parts = [(x, y, x + 64, y + 64) for y in (0, 64) for x in (0, 64)]
    tiles = [coded(SMOOTH.resize((128, 128)).crop(part)) for part in parts]
    pixels = decode(grid(tiles, rows=2, columns=2, width=128, height=128))
    assert_close(pixels, np.asarray(SMOOTH.resize((128, 128))).astype(int))


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_turns_avif_once(orientation: int) -> None:
    turns = {1: 0, 3: 2, 6: 3, 8: 1}[orientation]
    data = encode(SMOOTH, "AVIF", quality=95, exif=exif(orientation))
    assert_close(decode(data), np.rot90(PIXELS, turns))


def test_decodes_avif_of_10_bits() -> None:
    file = BytesIO()
    with scheduling_policy_restored(), av.open(file, "w", format="avif") as output:
        stream = output.add_stream("libsvtav1", rate=1, options={"preset": "10", "crf": "8", "svtav1-params": "lp=1"})
        stream.width, stream.height, stream.pix_fmt = 128, 96, "yuv420p10le"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(SMOOTH), format="rgb24")))
        output.mux(stream.encode(None))
    assert_close(decode(file.getvalue()), PIXELS)


def test_transparent_avif_shows_the_background() -> None:
    clear = PIL.Image.new("RGBA", (64, 48), (200, 0, 0, 0))
    assert (decode(encode(clear, "AVIF")) == 255).all()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_refuses_truncated_files(share: float) -> None:
    noise = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8))
    for data, name in ((heic(noise), "HEIC"), (encode(noise, "AVIF"), "AVIF")):
        with pytest.raises(MediaError, match=f"the {name} is corrupt or truncated") as caught:
            decode(data[: int(len(data) * share)])
        assert caught.value.code == MediaErrorCode.INVALID_MEDIA


def test_checks_dimensions_before_decoding() -> None:
    for data in (heic(SMOOTH), encode(SMOOTH, "AVIF")):
        claimed = data.replace(struct.pack(">II", 128, 96), struct.pack(">II", 20_000, 10_000))
        with pytest.raises(MediaError) as caught:
            open_image(claimed, max_pixels=1_000_000)
        assert caught.value.code in (MediaErrorCode.TOO_LARGE, MediaErrorCode.INVALID_MEDIA)
