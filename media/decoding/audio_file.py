"""Decoding of audio files with FFmpeg (PyAV), frame by frame and no further than the model's audio length.

As for videos, FFmpeg gets the bytes and nothing else: the demuxer is chosen here from the file's first bytes, and only
listed decoders run. `glimpse.media.processing.audio` processes the samples.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from glimpse.media.containers.decode_errors import cancelled, report_decode_errors
from glimpse.media.containers.sniff import sniff_audio
from glimpse.media.containers.video import open_container
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_from_samples
from glimpse.media.processing.audio_samples import resample_for_model

FloatArray = npt.NDArray[np.float32]

_PCM = ("s16le", "s16be", "s24le", "s24be", "s32le", "s32be", "f32le", "f32be", "f64le", "f64be", "u8", "alaw", "mulaw")
DECODERS = ("flac", "mp3float", "mp3", "vorbis", "opus", "libopus", "aac", "alac", *(f"pcm_{kind}" for kind in _PCM))
"""FFmpeg decoders that may run."""
_CODECS = "PCM, FLAC, ALAC, MP3, AAC, Vorbis and Opus"
_UNREADABLE_PLANES = 8
"""From so many on, FFmpeg's list of a frame's planes does not end as PyAV expects."""
_FULL_SCALE = {np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}


def audio_from_file(data: bytes, processing: AudioProcessing, *, stopped: Callable[[], bool] = lambda: False) -> Audio:
    """Decodes and preprocesses an audio file. Channels are averaged.

    Args:
        data: The file; of a video, the first audio stream is used.
        stopped: Called between frames; True cancels the decoding.

    Raises:
        MediaError: The file cannot be used.
    """
    return audio_from_samples(samples_from_file(data, processing, stopped=stopped), processing)


def samples_from_file(
    data: bytes, processing: AudioProcessing, *, stopped: Callable[[], bool] = lambda: False
) -> FloatArray:
    """Decodes an audio file and returns the samples of `resample_for_model`. The arguments are those above.

    Raises:
        MediaError: The file cannot be used.
    """
    audio_format = sniff_audio(data)
    with report_decode_errors("audio"):
        container = open_container(data, audio_format, decoders=DECODERS, hidden_kind=b"vide", options={})
    with container, report_decode_errors("audio"):
        frames = container.decode(_audio_stream(container))
        first = next(frames, None)
        if first is None:
            raise _no_audio()
        return resample_for_model(
            _chunks(chain((first,), frames), first.sample_rate, stopped), first.sample_rate, processing
        )


def _audio_stream(container: Any) -> Any:
    if not container.streams.audio:
        raise _no_audio()
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec is None or codec.name not in DECODERS:
        message = f"expected audio of one of the codecs {_CODECS}, got another codec"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    codec.thread_count = 1
    return stream


def _chunks(frames: Iterator[Any], rate: int, stopped: Callable[[], bool]) -> Iterator[FloatArray]:
    for frame in _readable(frames):
        if stopped():
            raise cancelled("audio")
        if frame.sample_rate != rate:
            message = f"expected audio of one sampling rate, got {rate} Hz and {frame.sample_rate} Hz"
            raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
        yield _mono(frame)


def _readable(frames: Iterator[Any]) -> Iterator[Any]:
    """Yields the same samples in frames that PyAV can read: it reads beyond the planes of frames that have many."""
    interleaver, its_frames = None, None
    for frame in frames:
        if not frame.format.is_planar or frame.layout.nb_channels < _UNREADABLE_PLANES:
            yield frame
            continue
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if interleaver is None or kind != its_frames:
            its_frames = kind
            interleaver = av.AudioResampler(frame.format.packed.name, frame.layout, frame.sample_rate)
        yield from interleaver.resample(frame)


def _no_audio() -> MediaError:
    return MediaError(MediaErrorCode.INVALID_MEDIA, "expected a file with an audio stream, got none")


def _mono(frame: Any) -> FloatArray:
    """Returns [samples]: the mean of the channels, full scale at 1."""
    values = frame.to_ndarray()  # planar: [channels, samples]; interleaved: [1, samples · channels]
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        values = (values.astype(np.float32) - 128) / 128
    return (values.astype(np.float32) / _FULL_SCALE.get(values.dtype, 1)).mean(axis=0, dtype=np.float32)
