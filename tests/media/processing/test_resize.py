"""Native resampling: the same bytes as Pillow's at every size, and Pillow as the fallback."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL.Image import Resampling

from glimpse.media.native import library
from glimpse.media.native.library import Resizer, environment_for_workers
from glimpse.media.pixels import RgbImage, get_pixels
from glimpse.media.processing.render import resize, resize_with_pillow
from tests.media.images import scene
from tests.media.resizing import RESIZERS, at_each_level

Array = npt.NDArray[np.uint8]
Size = tuple[int, int]

sides = st.one_of(st.integers(1, 5), st.integers(1, 70), st.integers(1, 400))
sizes = st.tuples(sides, sides)


def random_pixels(size: Size, *, seed: int, harsh: bool) -> Array:
    """Returns noise, [height, width, 3]; `harsh` noise is black and white only, so that the filter overshoots."""
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return (noise // 128 * 255).astype(np.uint8) if harsh else noise


def expected(source_image: RgbImage, size: Size, resampling: Resampling = Resampling.BICUBIC) -> Array:
    resized = np.empty((*size, 3), np.uint8)
    resize_with_pillow(source_image, resized, resampling)
    return resized


def resize_with(
    resizer: Resizer, source_image: RgbImage, size: Size, resampling: Resampling = Resampling.BICUBIC
) -> Array:
    resized = np.empty((*size, 3), np.uint8)
    resizer.resize(get_pixels(source_image), resized, resampling)
    return resized


@at_each_level
@pytest.mark.parametrize("resampling", [Resampling.BILINEAR, Resampling.BICUBIC, Resampling.LANCZOS])
@settings(max_examples=60)
@given(
    size=sizes,
    wanted=sizes,
    same_height=st.booleans(),
    same_width=st.booleans(),
    seed=st.integers(0, 99),
    harsh=st.booleans(),
)
@example((1, 1), (1, 1), False, False, 0, False)
@example((1, 1), (300, 200), False, False, 0, True)
@example((2, 900), (350, 3), False, False, 1, True)  # wider than two tiles, reduced to almost nothing
@example((900, 2), (3, 350), False, False, 1, True)  # columns first
@example((70, 90), (140, 180), False, False, 2, True)  # enlarged: some weights are zero
@example((400, 300), (100, 250), False, False, 3, False)  # columns first: the rows shrink more
@example((400, 300), (300, 250), False, False, 3, False)  # rows first: just below the threshold
def test_pixels_equal_pillows(
    resizer: Resizer,
    resampling: Resampling,
    size: Size,
    wanted: Size,
    same_height: bool,
    same_width: bool,
    seed: int,
    harsh: bool,
) -> None:
    wanted = (size[0] if same_height else wanted[0], size[1] if same_width else wanted[1])
    array = random_pixels(size, seed=seed, harsh=harsh)
    image = PIL.Image.fromarray(array)
    theirs = expected(image, wanted, resampling)
    np.testing.assert_array_equal(resize_with(resizer, array, wanted, resampling), theirs)
    np.testing.assert_array_equal(resize_with(resizer, image, wanted, resampling), theirs)


@at_each_level
def test_large_image_equals_pillows(resizer: Resizer) -> None:
    image = scene(1920, 1080)
    np.testing.assert_array_equal(resize_with(resizer, image, (728, 1316)), expected(image, (728, 1316)))


@at_each_level
def test_resizes_images_in_several_memory_blocks(resizer: Resizer) -> None:
    image = PIL.Image.fromarray(np.tile(random_pixels((64, 64), seed=1, harsh=False), (40, 40, 1)))
    with pytest.raises(ValueError, match="contiguous"):
        image.__arrow_c_array__()
    assert get_pixels(image).pixel_bytes == 3
    np.testing.assert_array_equal(resize_with(resizer, image, (50, 60)), expected(image, (50, 60)))


def test_pillow_pixels_are_not_copied() -> None:
    image = scene(30, 20)
    assert get_pixels(image).pixel_bytes == 4
    assert get_pixels(image).address == get_pixels(image).address


@at_each_level
def test_resizes_strided_and_rotated_arrays(resizer: Resizer) -> None:
    array = random_pixels((40, 60), seed=4, harsh=False)
    for view in (np.rot90(array), array[::2, ::3], array[:, :, ::-1]):
        theirs = expected(np.ascontiguousarray(view), (28, 56))
        np.testing.assert_array_equal(resize_with(resizer, view, (28, 56)), theirs)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        (PIL.Image.new("L", (4, 4)), "mode RGB, got L"),
        (PIL.Image.new("RGBA", (4, 4)), "mode RGB, got RGBA"),
        (np.zeros((4, 4), np.uint8), r"uint8 \[4, 4\]"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 \[4, 4, 4\]"),
        (np.zeros((4, 4, 3), np.float32), r"float32 \[4, 4, 3\]"),
    ],
)
def test_refuses_unsupported_images(image: RgbImage, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        get_pixels(image)


@at_each_level
@pytest.mark.parametrize(
    "into",
    [
        np.empty((4, 4, 4), np.uint8),
        np.empty((4, 4), np.uint8),
        np.empty((4, 4, 3), np.int8),
        np.empty((4, 8, 3), np.uint8)[:, ::2],
        np.broadcast_to(np.uint8(0), (4, 4, 3)),
        np.empty((0, 4, 3), np.uint8),
    ],
    ids=["four channels", "no channels", "signed", "gaps", "read-only", "empty"],
)
def test_refuses_unsupported_outputs(resizer: Resizer, into: Array) -> None:
    with pytest.raises(ValueError, match=r"expected a contiguous|expected sides"):
        resizer.resize(get_pixels(scene(9, 9)), into)


@at_each_level
def test_refuses_other_filters(resizer: Resizer) -> None:
    with pytest.raises(ValueError, match="expected bilinear, bicubic or Lanczos"):
        resizer.resize(get_pixels(scene(9, 9)), np.empty((4, 4, 3), np.uint8), Resampling.HAMMING)


@at_each_level
def test_refuses_empty_and_too_wide_images(resizer: Resizer) -> None:
    for shape in ((0, 4, 3), (1, (1 << 24) + 1, 3)):
        with pytest.raises(ValueError, match="expected sides"):
            resizer.resize(get_pixels(np.empty(shape, np.uint8)), np.empty((4, 4, 3), np.uint8))


@pytest.fixture
def fresh_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Clears the cached library, as in a new process."""
    library.native_resizer.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    library.native_resizer.cache_clear()


def assert_pillow_resizes() -> None:
    assert library.native_resizer() is None
    resized = np.empty((28, 56, 3), np.uint8)
    for source_image in (scene(90, 40), np.asarray(scene(90, 40))):
        resize(source_image, into=resized)
        np.testing.assert_array_equal(resized, expected(source_image, (28, 56)))


def test_falls_back_to_pillow_without_a_compiler(
    fresh_library: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh_library.setenv("PATH", str(tmp_path))
    fresh_library.delenv("CXX", raising=False)
    fresh_library.delenv("GLIMPSE_MEDIA_LIBRARY", raising=False)
    fresh_library.setattr("glimpse.native.compiler.packaged_library", lambda _: tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        assert_pillow_resizes()
    assert [record.getMessage() for record in caplog.records] == [
        "resizing images with Pillow, which is slower: "
        "no C++ compiler found: install g++, or name a compiler in the environment variable CXX"
    ]
    assert environment_for_workers() == {"GLIMPSE_MEDIA_LIBRARY": "none"}


def test_native_resizing_can_be_disabled(fresh_library: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fresh_library.setenv("GLIMPSE_MEDIA_LIBRARY", "none")
    assert_pillow_resizes()
    assert not caplog.records


def test_falls_back_to_pillow_if_the_library_is_invalid(
    fresh_library: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "media.so").write_bytes(b"nonsense")
    fresh_library.setenv("GLIMPSE_MEDIA_LIBRARY", str(tmp_path / "media.so"))
    assert_pillow_resizes()
    assert "media.so" in caplog.text


@pytest.mark.skipif(not RESIZERS, reason="native resampling cannot be compiled")
def test_worker_processes_use_the_same_library(fresh_library: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment_for_workers().items():
        fresh_library.setenv(name, value)
    fresh_library.setenv("PATH", str(tmp_path))
    library.native_resizer.cache_clear()
    resizer = library.native_resizer()
    assert resizer is not None
    assert resizer.path == RESIZERS[0].path
