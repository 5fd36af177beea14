"""Video files: decoding of requested frames, seeking, and refusal of invalid files."""

import os
import struct
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.stream import Disposition

from glimpse.media.containers.video import FrameTimes, open_video
from glimpse.media.errors import MediaError, MediaErrorCode
from tests.media.images import encode, scene
from tests.media.videos import CODECS, greys, numbers, streamable_mp4, turned_mp4, video, write

MAX_PIXELS = 1 << 20


def frames_of(data: bytes, indices: list[int]) -> np.ndarray:
    """Returns the frames with these indices, [frames, height, width, 3]."""
    with open_video(data, max_pixels=MAX_PIXELS) as opened:
        found = opened.frame_times()
        times = [found.times[index] for index in indices]
        return np.stack([np.asarray(frame) for frame in opened.frames(times, found.keyframes, lambda: False)])


def times_of(data: bytes) -> FrameTimes:
    with open_video(data, max_pixels=MAX_PIXELS) as opened:
        return opened.frame_times()


def read_all(data: bytes, max_pixels: int) -> None:
    with open_video(data, max_pixels=max_pixels) as opened:
        found = opened.frame_times()
        list(opened.frames(found.times, found.keyframes, lambda: False))


def refusal(data: bytes, max_pixels: int = MAX_PIXELS) -> MediaError:
    with pytest.raises(MediaError) as caught:
        read_all(data, max_pixels)
    return caught.value


@pytest.mark.parametrize(("container", "codec"), CODECS.values(), ids=CODECS.keys())
def test_finds_every_frame_of_every_codec(container: str, codec: str) -> None:
    data = video(greys(12), container=container, codec=codec)
    assert numbers(frames_of(data, list(range(12)))) == list(range(12))
    assert numbers(frames_of(data, [0, 1, 6, 11])) == [0, 1, 6, 11]
    assert numbers(frames_of(data, [7])) == [7]
    times = times_of(data)
    assert [round(times.seconds(index), 3) for index in (0, 1, 11)] == [0, 0.1, 1.1]
    assert times.last_duration * times.unit_seconds == Fraction(1, 10)


@pytest.mark.parametrize("keyframe_every", [1, 4, 100])
def test_seeking_to_keyframes_changes_no_pixel(keyframe_every: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    data = video(noise, keyframe_every=keyframe_every)
    everything = frames_of(data, list(range(30)))
    for indices in ([3, 4, 17, 29], [0, 29], [11, 12], [28]):
        assert (frames_of(data, indices) == everything[indices]).all()


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("keyframe_every", [10, 100])
def test_frames_that_an_edit_list_hides_are_decoded_for_those_after_them(codec: str, keyframe_every: int) -> None:
    """Phones and `ffmpeg -ss … -c copy` cut so: a part begins at a keyframe before it."""
    data = video(greys(30), codec=codec, keyframe_every=keyframe_every, times=range(-4, 26), bf="0")
    found = times_of(data)
    assert (len(found.times), found.num_cut_away, found.seconds(25)) == (26, 4, 2.5)
    assert numbers(frames_of(data, list(range(26)))) == list(range(4, 30))
    assert numbers(frames_of(data, [1, 3, 20])) == [5, 7, 24]
    assert numbers(frames_of(data, [25])) == [29]


@pytest.mark.parametrize("keyframe_every", [2, 3, 5])
def test_keyframes_that_are_decoded_before_earlier_ones_are_shown_hide_none(keyframe_every: int) -> None:
    options: Any = {"movflags": "frag_keyframe+empty_moov"}
    data = video(greys(30), codec="libx265", keyframe_every=keyframe_every, **options)
    assert [numbers(frames_of(data, [index])) for index in range(30)] == [[index] for index in range(30)]


def test_decodes_only_from_the_nearest_keyframe() -> None:
    num_calls = 0

    def count() -> bool:
        nonlocal num_calls
        num_calls += 1
        return False

    with open_video(video(greys(40), keyframe_every=10), max_pixels=MAX_PIXELS) as opened:
        found = opened.frame_times()
        list(opened.frames([found.times[31], found.times[39]], found.keyframes, count))
    assert num_calls <= 10


def test_decoding_can_be_cancelled() -> None:
    with open_video(video(greys(4)), max_pixels=MAX_PIXELS) as opened:
        found = opened.frame_times()
        with pytest.raises(MediaError, match="was cancelled"):
            list(opened.frames(found.times, found.keyframes, lambda: True))


def test_supports_variable_frame_rates() -> None:
    data = video(greys(5), times=[0, 1, 7, 8, 30])
    times = times_of(data)
    assert [times.seconds(index) for index in range(5)] == [0, 0.1, 0.7, 0.8, 3]
    assert numbers(frames_of(data, [2, 4])) == [2, 4]


def test_reads_fragmented_files() -> None:
    data = video(greys(12), movflags="frag_keyframe+empty_moov")
    assert numbers(frames_of(data, [0, 5, 11])) == [0, 5, 11]


def test_applies_the_rotation_of_a_video() -> None:
    image = np.asarray(scene(64, 32))
    lying = video(np.stack([image] * 4))
    (upright,) = frames_of(turned_mp4(lying), [2])
    assert upright.shape == (64, 32, 3)
    (flat,) = frames_of(lying, [2])
    assert (upright == np.rot90(flat, -1)).all()


def test_ignores_cover_art() -> None:
    file = BytesIO()
    with av.open(file, "w", format="mp4") as output:
        cover: Any = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 32, 32, "yuvj420p"
        cover.disposition = Disposition.attached_pic
        write(output, greys(4), codec="libx264", fps=10, keyframe_every=5)
        image = np.zeros((32, 32, 3), np.uint8)
        output.mux(cover.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(cover.encode(None))
    assert numbers(frames_of(file.getvalue(), [3])) == [3]


def test_ignores_audio_streams() -> None:
    assert numbers(frames_of(video(greys(6), container="mov", with_audio=True), [5])) == [5]


@pytest.mark.parametrize("codec", ["libx264", "vp8", "libsvtav1"])
def test_refuses_large_frames_by_the_header(codec: str) -> None:
    data = video(greys(2, width=128, height=64), container="matroska", codec=codec)
    error = refusal(data, max_pixels=128 * 64 - 1)
    assert (error.code, "128×64" in error.message) == (MediaErrorCode.TOO_LARGE, True)


def test_refuses_large_vp9_frames() -> None:
    error = refusal(video(greys(2, width=128, height=64), container="webm", codec="libvpx-vp9"), max_pixels=8191)
    assert (error.code, "8191 pixels" in error.message) == (MediaErrorCode.INVALID_MEDIA, True)


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9", "libsvtav1"])
def test_refuses_frames_larger_than_the_header_claims(codec: str) -> None:
    data = video(greys(2, width=256, height=192), codec=codec)
    for size in (256, 192):  # in the track and in the sample description
        data = data.replace(struct.pack(">H", size) + b"\0\0", struct.pack(">H", 16) + b"\0\0")
        data = data.replace(struct.pack(">HH", 256, 192), struct.pack(">HH", 16, 16))
    assert refusal(data, max_pixels=64 * 64).code in (MediaErrorCode.INVALID_MEDIA, MediaErrorCode.TOO_LARGE)


def test_encoding_restores_the_scheduling_policy() -> None:
    before = os.sched_getscheduler(0)
    video(greys(2), codec="libsvtav1")
    assert os.sched_getscheduler(0) == before


NOT_VIDEOS: list[tuple[bytes, str]] = [
    (b"", "got 0 bytes"),
    (b"#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1/secret.ts\n", "got a playlist"),
    (b"ffconcat version 1.0\nfile '/etc/passwd'\n", "got a playlist"),
    (b"<?xml version='1.0'?><MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>", "an XML document"),
    (
        encode(scene(20, 20), "PNG"),
        "expected a video (MP4, QuickTime, WebM, Matroska or AVI, or an animated image), got a PNG image",
    ),
    (encode(scene(20, 20), "GIF"), "got a GIF image"),
    (b"OggS", "an Ogg file"),
    (b"hello there", "got an unknown format"),
]


@pytest.mark.parametrize(("data", "words"), NOT_VIDEOS)
def test_refuses_other_formats_by_name(data: bytes, words: str) -> None:
    error = refusal(data)
    assert words in error.message
    assert error.code == (MediaErrorCode.UNSUPPORTED_FORMAT if data else MediaErrorCode.INVALID_MEDIA)


@pytest.mark.parametrize("magic", [b"\0\0\0\x20ftypisom", b"\x1a\x45\xdf\xa3", b"\0\0\0\x08moov", b"\0\0\0\0mdat"])
@pytest.mark.parametrize("rest", [b"", b"\0" * 5000, b"#EXTM3U\nhttp://127.0.0.1/x\n", b"\xff" * 5000])
def test_refuses_magic_bytes_without_a_video(magic: bytes, rest: bytes) -> None:
    assert refusal(magic + rest).code == MediaErrorCode.INVALID_MEDIA


def test_playlist_after_magic_bytes_opens_no_other_file(tmp_path: Path) -> None:
    other = tmp_path / "other.mp4"
    other.write_bytes(video(greys(4)))
    for playlist in (f"\nfile '{other}'\n", f"\n#EXTM3U\n#EXTINF:1,\n{other}\n"):
        assert refusal(b"\0\0\0\x10ftypisom\0\0\0\0" + playlist.encode()).code == MediaErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.97])
@pytest.mark.parametrize("kind", ["index last", "index first", "Matroska"])
def test_truncated_files_are_refused_or_partly_read(kind: str, share: float, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (20, 48, 64, 3), dtype=np.uint8)
    match kind:
        case "index last":
            data = video(frames)
        case "index first":
            data = streamable_mp4(frames, tmp_path)
        case _:
            data = video(frames, container="webm", codec="libvpx-vp9")
    cut = data[: int(len(data) * share)]
    if kind == "Matroska" and share > 0.02:  # written as a stream, so it may end anywhere
        assert 0 < len(times_of(cut).times) < 20
    else:
        assert refusal(cut).code == MediaErrorCode.INVALID_MEDIA


@pytest.mark.parametrize("seed", range(30))
def test_corrupt_files_decode_or_raise_media_errors(seed: int) -> None:
    """Changes random bytes: the result is frames or a client error."""
    random = np.random.default_rng(seed)
    container, codec = list(CODECS.values())[seed % len(CODECS)]
    corrupt = bytearray(video(greys(6), container=container, codec=codec))
    for place in random.integers(32, len(corrupt), 12):
        corrupt[place] = int(random.integers(0, 256))
    try:
        result: Any = frames_of(bytes(corrupt), [0]).ndim
    except MediaError as error:
        result = error.code
    assert result in (4, *MediaErrorCode)


def test_refuses_a_file_with_only_audio() -> None:
    file = BytesIO()
    with av.open(file, "w", format="mov") as output:
        stream = output.add_stream("pcm_s16le", rate=48000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 480), np.int16), format="s16", layout="mono")
        silence.sample_rate = 48000
        output.mux(stream.encode(silence))
    assert refusal(file.getvalue()).code == MediaErrorCode.INVALID_MEDIA


def test_refuses_unsupported_codecs() -> None:
    error = refusal(video(greys(3), container="matroska", codec="ffv1"))
    assert error.code == MediaErrorCode.UNSUPPORTED_FORMAT
    codecs = "H.264, HEVC, VP8, VP9, AV1, MPEG-4 Part 2, Motion JPEG"
    assert error.message == f"expected a video of one of the codecs {codecs}, got codec 'ffv1'"


def test_reads_h264_in_an_avi_only_in_order() -> None:
    """The frames of such a file have no presentation times, so that others would be taken for those asked for."""
    error = refusal(video(greys(12), container="avi"))
    assert (error.code, "without B-frames" in error.message) == (MediaErrorCode.UNSUPPORTED_FORMAT, True)
    in_order = video(greys(12), container="avi", bf="0")
    assert numbers(frames_of(in_order, [0, 5, 11])) == [0, 5, 11]


def test_refuses_too_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.containers.video.MAX_SOURCE_FRAMES", 19)
    error = refusal(video(greys(20), container="webm", codec="vp8"))
    assert (error.code, error.message) == (MediaErrorCode.TOO_LARGE, "expected a video of at most 19 frames, got more")
