"""Keys of media: different media never share a key."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.key import content_key, decoded_key
from glimpse.media.processing.video_options import VideoOptions
from tests.media.loaders import PROCESSING, VIDEO_PROCESSING
from tests.media.sizes import resized_by

IMAGES = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda size: st.binary(min_size=3 * size[0] * size[1], max_size=3 * size[0] * size[1]).map(
        lambda pixels: np.frombuffer(pixels, np.uint8).reshape(*size, 3)
    )
)
OPTIONS = st.builds(
    VideoOptions,
    fps=st.none() | st.sampled_from([1, 1.0, 2.0, 0.1]),
    num_frames=st.none() | st.integers(1, 3),
    max_frames=st.none() | st.integers(1, 3),
)
DIGESTS = st.lists(st.binary(max_size=3), max_size=3)


@given(IMAGES, IMAGES, st.integers(1, 3), st.integers(1, 3))
def test_content_keys_are_equal_only_for_equal_content(first: Any, second: Any, one: int, other: int) -> None:
    is_same = first.shape == second.shape and first.tobytes() == second.tobytes() and one == other
    assert (content_key("image", first, one) == content_key("image", second, other)) == is_same
    assert content_key("image", first, one) != content_key("video", first, one)


@given(st.tuples(st.text(max_size=2), DIGESTS, OPTIONS), st.tuples(st.text(max_size=2), DIGESTS, OPTIONS))
def test_decoded_keys_are_equal_only_for_equal_inputs(first: Any, second: Any) -> None:
    one, other = (
        decoded_key(namespace, "video", digests, VIDEO_PROCESSING, options)
        for namespace, digests, options in (first, second)
    )
    assert (one == other) == (repr(first) == repr(second))


def test_every_parameter_changes_the_key() -> None:
    keys = [
        decoded_key("", "image", [b"a"], PROCESSING),
        decoded_key("x", "image", [b"a"], PROCESSING),
        decoded_key("", "video", [b"a"], PROCESSING),
        decoded_key("", "image", [b"a", b""], PROCESSING),
        decoded_key("", "image", [b"b"], PROCESSING),
        decoded_key("", "image", [b"a"], resized_by(PROCESSING, max_pixels=1)),
        decoded_key("", "image", [b"a"], replace(PROCESSING, background=(0, 0, 0))),
        decoded_key("", "image", [b"a"], PROCESSING, (0,)),
    ]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
