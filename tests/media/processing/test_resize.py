"""Compiled resampling against Pillow's: the same bytes at every size; where nothing can be compiled, Pillow itself."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glimpse.media.native import library
from glimpse.media.native.library import Resizer, environment_for_workers
from glimpse.media.pixels import RgbImage, get_pixels
from glimpse.media.processing.resize import resize, resize_with_pillow
from tests.media.images import scene
from tests.media.resizing import RESIZERS, at_each_level

Array = npt.NDArray[np.uint8]
Size = tuple[int, int]

sides = st.one_of(st.integers(1, 5), st.integers(1, 70), st.integers(1, 400))
sizes = st.tuples(sides, sides)


def drawn(size: Size, *, seed: int, harsh: bool) -> Array:
    """[height, width, 3]: noise; the harsh one is of black and white alone, which goes beyond what a byte holds."""
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return (noise // 128 * 255).astype(np.uint8) if harsh else noise


def expected(source_image: RgbImage, size: Size) -> Array:
    resized = np.empty((*size, 3), np.uint8)
    resize_with_pillow(source_image, resized)
    return resized


def by(resizer: Resizer, source_image: RgbImage, size: Size) -> Array:
    resized = np.empty((*size, 3), np.uint8)
    resizer.resize(get_pixels(source_image), resized)
    return resized


@at_each_level
@settings(max_examples=60, deadline=None)
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
@example((2, 900), (350, 3), False, False, 1, True)  # wider than two tiles, into hardly anything
@example((900, 2), (3, 350), False, False, 1, True)  # columns first
@example((70, 90), (140, 180), False, False, 2, True)  # weights that are nothing in between
@example((400, 300), (100, 250), False, False, 3, False)  # columns first: four times fewer rows
@example((400, 300), (300, 250), False, False, 3, False)  # rows first: as many rows less as would just do otherwise
def test_pixels_are_pillows(
    resizer: Resizer, size: Size, wanted: Size, same_height: bool, same_width: bool, seed: int, harsh: bool
) -> None:
    wanted = (size[0] if same_height else wanted[0], size[1] if same_width else wanted[1])
    array = drawn(size, seed=seed, harsh=harsh)
    image = PIL.Image.fromarray(array)
    theirs = expected(image, wanted)
    np.testing.assert_array_equal(by(resizer, array, wanted), theirs)
    np.testing.assert_array_equal(by(resizer, image, wanted), theirs)


@at_each_level
def test_a_photographs_size_is_pillows_too(resizer: Resizer) -> None:
    image = scene(1920, 1080)
    np.testing.assert_array_equal(by(resizer, image, (728, 1316)), expected(image, (728, 1316)))


@at_each_level
def test_an_image_that_pillow_has_in_pieces_is_resized_too(resizer: Resizer) -> None:
    image = PIL.Image.fromarray(np.tile(drawn((64, 64), seed=1, harsh=False), (40, 40, 1)))
    with pytest.raises(ValueError, match="contiguous"):
        image.__arrow_c_array__()
    assert get_pixels(image).pixel_bytes == 3
    np.testing.assert_array_equal(by(resizer, image, (50, 60)), expected(image, (50, 60)))


def test_pillows_pixels_are_used_where_they_are() -> None:
    image = scene(30, 20)
    assert get_pixels(image).pixel_bytes == 4
    assert get_pixels(image).address == get_pixels(image).address


@at_each_level
def test_arrays_with_gaps_and_turned_ones_are_resized(resizer: Resizer) -> None:
    array = drawn((40, 60), seed=4, harsh=False)
    for view in (np.rot90(array), array[::2, ::3], array[:, :, ::-1]):
        theirs = expected(np.ascontiguousarray(view), (28, 56))
        np.testing.assert_array_equal(by(resizer, view, (28, 56)), theirs)


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
def test_other_images_are_refused(image: RgbImage, complaint: str) -> None:
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
def test_other_results_are_refused(resizer: Resizer, into: Array) -> None:
    with pytest.raises(ValueError, match=r"expected a contiguous|expected sides"):
        resizer.resize(get_pixels(scene(9, 9)), into)


@at_each_level
def test_an_empty_image_and_one_too_wide_are_refused(resizer: Resizer) -> None:
    for shape in ((0, 4, 3), (1, (1 << 24) + 1, 3)):
        with pytest.raises(ValueError, match="expected sides"):
            resizer.resize(get_pixels(np.empty(shape, np.uint8)), np.empty((4, 4, 3), np.uint8))


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has resized nothing yet."""
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


def test_without_a_compiler_pillow_resizes(
    afresh: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    afresh.setenv("PATH", str(tmp_path))
    afresh.delenv("CXX", raising=False)
    afresh.delenv("GLIMPSE_MEDIA_LIBRARY", raising=False)
    with caplog.at_level(logging.WARNING):
        assert_pillow_resizes()
    assert [record.getMessage() for record in caplog.records] == [
        "resizing images with Pillow, which is slower: "
        "no C++ compiler found: install g++, or name a compiler in the environment variable CXX"
    ]
    assert environment_for_workers() == {"GLIMPSE_MEDIA_LIBRARY": "none"}


def test_who_is_told_so_resizes_by_pillow(afresh: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    afresh.setenv("GLIMPSE_MEDIA_LIBRARY", "none")
    assert_pillow_resizes()
    assert not caplog.records


def test_what_is_no_library_does_not_keep_images_from_being_resized(
    afresh: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "media.so").write_bytes(b"nonsense")
    afresh.setenv("GLIMPSE_MEDIA_LIBRARY", str(tmp_path / "media.so"))
    assert_pillow_resizes()
    assert "media.so" in caplog.text


@pytest.mark.skipif(not RESIZERS, reason="nothing can be compiled here")
def test_other_processes_get_the_library_that_this_one_has(afresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment_for_workers().items():
        afresh.setenv(name, value)
    afresh.setenv("PATH", str(tmp_path))
    library.native_resizer.cache_clear()
    resizer = library.native_resizer()
    assert resizer is not None
    assert resizer.path == RESIZERS[0].path
