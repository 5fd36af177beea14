"""Audio files: equal to their arrays, decoded up to the maximum duration; invalid files are refused."""

import base64
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.media.decoding.audio_file import audio_from_file, samples_from_file
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio_samples import audio_from_array
from tests.media.audio import FILES, PROCESSING, audio_file, noise, tone
from tests.media.videos import greys, video

WAV = audio_file(noise(1, 8_000), 16_000)


@pytest.mark.parametrize("kind", FILES)
def test_decodes_every_format(kind: str) -> None:
    container, codec = FILES[kind]
    data = audio_file(np.stack([tone(440, 48_000, 1)] * 2), 48_000, container=container, codec=codec)
    samples = samples_from_file(data, PROCESSING)
    assert abs(len(samples) - 16_000) < 500
    middle = samples[2_000:14_000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * 16_000 / len(middle) == pytest.approx(440, abs=2)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
@pytest.mark.parametrize("num_channels", [1, 2, 6])
def test_file_equals_its_array(rate: int, num_channels: int) -> None:
    samples = np.stack([noise(seed, 30_000) for seed in range(num_channels)])
    file, array = audio_from_file(audio_file(samples, rate), PROCESSING), audio_from_array(samples, rate, PROCESSING)
    assert file.key == array.key
    assert np.array_equal(file.features, array.features)


def test_channels_of_more_planes_than_pyav_reads_are_all_heard() -> None:
    """AAC in 7.1, each channel in a plane of its own: seven are silent, so the mean is an eighth of the tone."""
    channels = np.zeros((8, 48_000), np.float32)
    channels[1] = tone(440, 48_000, 1)
    samples = samples_from_file(audio_file(channels, 48_000, container="adts", codec="aac"), PROCESSING)
    assert np.abs(samples[2_000:14_000]).max() == pytest.approx(0.5 / 8, abs=0.01)


def test_a_damaged_frame_of_35_channels_crashes_nothing() -> None:
    """Found by fuzzing: PyAV read pointers beyond the frame's."""
    data = base64.b64decode(
        "//FNgCd//N4CAExhdmM2Mi4AAAAAAF9fXFxZWVZWUVFOU05MU0xKSkhIRkZFRUREQgAAgAAAAAAH/wAAAAAAAAAAAAD+//gA8UyAAd/8IUDaRgjBwA=="
    )
    for _ in range(20):
        with suppress(MediaError):
            samples_from_file(data, PROCESSING)


def test_mp3_without_id3_tag() -> None:
    data = audio_file(tone(440, 48_000, 1), 48_000, container="mp3", codec="libmp3lame")
    bare = data[data.index(b"\xff\xfb") :]
    assert audio_from_file(bare, PROCESSING).grid == audio_from_file(data, PROCESSING).grid


def test_lossless_containers_have_the_same_key() -> None:
    samples = noise(1, 30_000)
    lossless = [FILES[kind] for kind in ("wav", "flac", "m4a, ALAC", "mkv, PCM")]
    files = [audio_file(samples, 48_000, container=container, codec=codec) for container, codec in lossless]
    assert len({audio_from_file(file, PROCESSING).key for file in files}) == 1


def test_decodes_no_more_than_the_maximum_duration() -> None:
    num_calls = 0

    def stopped() -> bool:
        nonlocal num_calls
        num_calls += 1
        return False

    # The end is missing, but it is never read.
    data = audio_file(noise(1, 8_000 * 90), 8_000)[: 8_000 * 2 * 60]
    loaded_audio = audio_from_file(data, PROCESSING, stopped=stopped)
    assert loaded_audio.duration_seconds == 30
    first_calls = num_calls
    audio_from_file(data[: 8_000 * 2 * 30], PROCESSING, stopped=stopped)
    assert abs((num_calls - first_calls) - first_calls) <= 2


def test_decodes_the_audio_of_a_video() -> None:
    data = video(greys(4), container="mov", with_audio=True)
    assert audio_from_file(data, PROCESSING).duration_seconds == 1


def test_decoding_can_be_cancelled() -> None:
    with pytest.raises(MediaError, match="was cancelled"):
        audio_from_file(WAV, PROCESSING, stopped=lambda: True)


def claims_rate(rate: int) -> bytes:
    return WAV[:24] + rate.to_bytes(4, "little") + WAV[28:]


PLAYLIST = b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/audio.mp3\n"
BAD: list[Any] = [
    pytest.param(b"", MediaErrorCode.INVALID_MEDIA, "got 0 bytes", id="empty"),
    pytest.param(b"hello", MediaErrorCode.UNSUPPORTED_FORMAT, "got an unknown format", id="no audio"),
    pytest.param(PLAYLIST, MediaErrorCode.UNSUPPORTED_FORMAT, "got a playlist", id="playlist"),
    pytest.param(b"\x89PNG\r\n\x1a\n", MediaErrorCode.UNSUPPORTED_FORMAT, "got a PNG image", id="image"),
    pytest.param(video(greys(4)), MediaErrorCode.INVALID_MEDIA, "with an audio stream, got none", id="silent video"),
    pytest.param(WAV[:44], MediaErrorCode.INVALID_MEDIA, "audio", id="header only"),
    pytest.param(WAV[:30], MediaErrorCode.INVALID_MEDIA, "corrupt or truncated", id="truncated"),
    pytest.param(claims_rate(1), MediaErrorCode.INVALID_MEDIA, "sampling rate", id="1 Hz"),
    pytest.param(claims_rate(10**9), MediaErrorCode.INVALID_MEDIA, "sampling rate", id="rate too high"),
    pytest.param(b"RIFF\x24\0\0\0AVI " + WAV, MediaErrorCode.INVALID_MEDIA, "the audio is corrupt", id="AVI"),
]


@pytest.mark.parametrize(("data", "code", "words"), BAD)
def test_refuses_invalid_audio(data: bytes, code: MediaErrorCode, words: str) -> None:
    with pytest.raises(MediaError, match=words) as caught:
        audio_from_file(data, PROCESSING)
    assert caught.value.code is code


FLAC = audio_file(noise(2, 4_000), 16_000, container="flac", codec="flac")
OGG = audio_file(noise(2, 4_000), 48_000, container="ogg", codec="libopus")
M4A = audio_file(noise(2, 4_000), 48_000, container="ipod", codec="aac")


@given(
    data=st.sampled_from([WAV, FLAC, OGG, M4A]),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_corrupt_files_decode_or_raise_media_errors(data: bytes, changes: list[tuple[int, int]]) -> None:
    corrupt = bytearray(data)
    for place, value in changes:
        corrupt[place % len(corrupt)] = value
    with suppress(MediaError):  # any other exception is a bug
        loaded_audio = audio_from_file(bytes(corrupt), PROCESSING)
        assert np.all(np.isfinite(loaded_audio.features))
        assert loaded_audio.duration_seconds <= 30
