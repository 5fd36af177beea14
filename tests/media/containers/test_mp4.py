"""Checks of the claims in an MP4 file before it is demuxed."""

import struct
from io import BytesIO

import av
import numpy as np
import pytest

from glimpse.media.containers.mp4 import MAX_SAMPLES, checked_mp4
from glimpse.media.errors import MediaError, MediaErrorCode
from tests.media.audio import audio_file, tone
from tests.media.heif import box
from tests.media.videos import greys, video


def claiming(data: bytes, box: bytes, offset: int, count: int) -> bytes:
    """Returns the file with a changed number in its first box of this type."""
    place = data.index(box) + 4 + offset
    return data[:place] + struct.pack(">I", count) + data[place + 4 :]


def refusal(data: bytes) -> MediaError:
    with pytest.raises(MediaError) as caught:
        checked_mp4(data)
    return caught.value


def table(kind: bytes, count: int) -> bytes:
    return box(kind, struct.pack(">III", 0, 1, count))


def test_ordinary_file_is_unchanged() -> None:
    data = video(greys(10))
    assert checked_mp4(data).getvalue() == data


@pytest.mark.parametrize("count", [MAX_SAMPLES + 1, 2**32 - 1])
def test_refuses_a_small_file_that_claims_many_frames(count: int) -> None:
    error = refusal(claiming(video(greys(10)), b"stsz", 8, count))
    assert (error.code, f"claims {count}" in error.message) == (MediaErrorCode.TOO_LARGE, True)


def test_checks_audio_samples_if_video_is_hidden() -> None:
    long_video = claiming(video(greys(10)), b"stsz", 8, 2**31)
    assert len(checked_mp4(long_video, hidden_kind=b"vide").getvalue()) == len(long_video)
    long_audio = claiming(audio_file(tone(440, 48_000, 1), 48_000, container="ipod", codec="aac"), b"stsz", 8, 2**31)
    with pytest.raises(MediaError, match="samples, got one that claims 2147483648"):
        checked_mp4(long_audio, hidden_kind=b"vide")


def test_limits_the_total_frames_of_all_fragments() -> None:
    data = video(greys(10), movflags="frag_keyframe+empty_moov")
    first = data.index(b"trun")
    halves = claiming(data, b"trun", 4, MAX_SAMPLES // 2 + 1)
    second = halves.index(b"trun", first + 4)
    assert checked_mp4(halves)
    assert refusal(halves[:second] + claiming(halves[second:], b"trun", 4, MAX_SAMPLES // 2)).code == "media_too_large"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(box(b"moov", box(b"udta", table(b"stsz", 2**31))), id="unexpected place"),
        pytest.param(box(b"free", box(b"moov", table(b"stz2", 2**31))), id="in an empty box"),
        pytest.param(struct.pack(">I4s", 3, b"moov") + table(b"stsz", 2**31), id="after a broken box"),
        pytest.param(struct.pack(">I4sQ", 1, b"moov", 2**60) + table(b"stsz", 2**31), id="in a box past the end"),
        pytest.param(struct.pack(">I4s", 0, b"moov") + table(b"stsz", 2**31), id="in a box without an end"),
        pytest.param(box(b"mdat", b"12") + box(b"moov", table(b"stsz", 2**31)), id="after the media data"),
        pytest.param(box(b"moov", box(b"trak", box(b"hdlr", b"\0" * 8, b"vide"), table(b"stsz", 2**31))), id="a track"),
    ],
)
def test_finds_sample_tables_anywhere_in_the_file(data: bytes) -> None:
    assert refusal(data).code == MediaErrorCode.TOO_LARGE


def test_ignores_tables_inside_media_data() -> None:
    data = box(b"mdat", table(b"stsz", 2**31)) + box(b"moov", table(b"stsz", 7))
    assert checked_mp4(data).getvalue() == data


def test_refuses_a_compressed_index() -> None:
    assert refusal(box(b"moov", box(b"cmov", b"x" * 20))).code == MediaErrorCode.UNSUPPORTED_FORMAT


def test_hides_audio_tracks_of_any_length() -> None:
    data = video(greys(4), container="mov", with_audio=True)
    audio_table = data.index(b"stsz", data.index(b"soun"))
    huge = data[:audio_table] + claiming(data[audio_table:], b"stsz", 8, 2**31)
    with av.open(BytesIO(data), "r") as whole, av.open(checked_mp4(huge), "r") as checked:
        assert len(whole.streams.audio) == 1
        assert (len(checked.streams.video), len(checked.streams.audio)) == (1, 0)
        assert len(list(checked.decode(video=0))) == 4


@pytest.mark.parametrize("seed", range(20))
def test_random_boxes_are_unchanged_or_refused(seed: int) -> None:
    random = np.random.default_rng(seed)
    pieces = [
        b"moov",
        b"trak",
        b"hdlr",
        b"stsz",
        b"mdat",
        b"soun",
        b"\0\0\0\x10",
        b"\0\0\0\0",
        b"\0\0\0\x01",
        b"\xff" * 4,
    ]
    data = b"".join(pieces[index] for index in random.integers(0, len(pieces), 60))
    try:
        result: object = len(checked_mp4(data).getvalue())
    except MediaError as error:
        result = error.code
    assert result in (len(data), MediaErrorCode.TOO_LARGE)
