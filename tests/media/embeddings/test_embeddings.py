"""Embeddings: which ones a model accepts, and their keys."""

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.embeddings.embeddings import Embedding, EmbeddingSpec, make_embedding
from glimpse.media.embeddings.tensor import MAX_DIMENSIONS, Tensor, TensorType, largest_magnitude, make_tensor
from glimpse.media.embeddings.tensor_file import check_torch_file, is_torch_file, read_safetensors
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.smart_resize import SmartResize
from tests.media.tensors import good, safetensors_file, torch_file

SPEC = EmbeddingSpec(kinds=frozenset(MediaKind), hidden_size=2, merge_size=2)
FLOATS = st.floats(width=16, allow_nan=False, allow_infinity=False)


def grid(*grid_thw: int) -> Tensor:
    return make_tensor(TensorType.INT64, (len(grid_thw),), np.array(grid_thw, "<i8").tobytes())


def floats(values: np.ndarray) -> Tensor:
    return make_tensor(TensorType(values.dtype.name), values.shape, values.tobytes())


def embedding(
    kind: MediaKind = MediaKind.VIDEO,
    dtype: str = "float32",
    shape: tuple[int, ...] = (8, 2),
    grid_thw: tuple[int, int, int] = (1, 4, 8),
    first: float = 0.0,
) -> Embedding:
    values = np.zeros(shape, dtype)
    values.flat[0] = first
    return make_embedding(kind, floats(values), grid(*grid_thw), SPEC)


@pytest.mark.parametrize("grid_thw", [(1, 4, 8), (1, 2, 16), (2, 4, 4), (8, 2, 2)])
def test_grid_determines_the_number_of_tokens(grid_thw: tuple[int, int, int]) -> None:
    made = embedding(grid_thw=grid_thw)
    assert (made.grid, made.num_tokens) == (grid_thw, 8)


def test_audio_embeddings_determine_their_number_of_tokens() -> None:
    made = make_embedding(MediaKind.AUDIO, floats(np.zeros((5, 2), np.float32)), None, SPEC)
    assert (made.grid, made.num_tokens) == ((1, 1, 5), 5)


@pytest.mark.parametrize("kind", MediaKind)
def test_refuses_embeddings_of_unsupported_media(kind: MediaKind) -> None:
    spec = EmbeddingSpec(kinds=frozenset(MediaKind) - {kind}, hidden_size=2, merge_size=2)
    with pytest.raises(MediaError, match=f"{kind}_embeds: the model does not accept embeddings of "):
        make_embedding(kind, floats(np.zeros((8, 2), np.float32)), grid(1, 4, 8), spec)


def test_any_difference_changes_the_key() -> None:
    different = [
        embedding(),
        embedding(kind=MediaKind.IMAGE),
        embedding(dtype="float16"),
        embedding(shape=(1, 8, 2)),
        embedding(grid_thw=(1, 8, 4)),
        embedding(grid_thw=(2, 4, 4)),
        embedding(first=-0.0),
        embedding(first=1.0),
    ]
    assert len({each.key for each in different}) == len(different)
    assert embedding().key == different[0].key


def test_embeddings_and_images_never_share_a_key() -> None:
    pixels = np.zeros((56, 56, 3), np.uint8)
    processing = ImageProcessing(
        sizing=SmartResize(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=784, max_pixels=10000)
    )
    source_image = prepare_image(PIL.Image.fromarray(pixels), processing)
    spec = EmbeddingSpec(kinds=SPEC.kinds, hidden_size=pixels.size // 4 // 4, merge_size=2)
    bytes_of_pixels = make_tensor(TensorType.FLOAT32, (4, spec.hidden_size), source_image.pixels.tobytes())
    assert make_embedding(MediaKind.IMAGE, bytes_of_pixels, grid(1, 4, 4), spec).key != source_image.key


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_largest_magnitude_matches_numpy(values: list[float]) -> None:
    expected = max(map(abs, values))
    for dtype in ("float32", "float16"):
        assert largest_magnitude(floats(np.array(values, dtype))) == expected
    upper_halves = (np.array(values, "<f4").view("<u4") >> 16).astype("<u2")
    brain = make_tensor(TensorType.BFLOAT16, (len(values),), upper_halves.tobytes())
    assert largest_magnitude(brain) == max(abs((upper_halves.astype("<u4") << 16).view("<f4")))


@pytest.mark.parametrize("place", [0, 1 << 20, (1 << 20) + 5])
def test_largest_magnitude_detects_nan_and_infinity(place: int) -> None:
    values = np.zeros((1 << 20) + 6, np.float16)
    values[place] = np.nan
    assert not largest_magnitude(floats(values)) <= 1
    values[place] = -np.inf
    assert largest_magnitude(floats(values)) == np.inf


@given(st.sampled_from(TensorType), st.lists(st.integers(-2, 1 << 63), max_size=MAX_DIMENSIONS + 2), st.integers(0, 99))
def test_tensor_shape_must_match_its_bytes(dtype: TensorType, shape: list[int], num_bytes: int) -> None:
    num_claimed = dtype.num_bytes
    for dimension in shape:
        num_claimed *= dimension
    fits = num_claimed == num_bytes and len(shape) <= MAX_DIMENSIONS and all(dimension > 0 for dimension in shape)
    try:
        made = make_tensor(dtype, tuple(shape), bytes(num_bytes))
    except MediaError:
        made = None
    assert (made is not None) == fits


@given(
    st.sampled_from([torch_file(good()), safetensors_file(good())]),
    st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=8),
    st.integers(0, 4096),
)
def test_corrupt_files_are_read_or_raise_media_errors(data: bytes, changes: list[tuple[int, int]], length: int) -> None:
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    file = bytes(changed[:length])
    try:
        read = None if (is_archive := is_torch_file(file)) else read_safetensors(file)
        if is_archive:
            check_torch_file(file)
    except MediaError:
        return
    assert read is None or len(read.data) < len(file)
