"""A sound file's bytes → a sound: decoded piece by piece for as long as it is heard, and no further.

FFmpeg gets the bytes and nothing else, as for videos: a demuxer that is named from the file's first bytes, and decoders
of a list. Knows containers and codecs; what is made of the samples is `glimpse.media.processing.audio`'s affair.
"""

from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import chain
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from glimpse.media.containers.decode_errors import report_decode_errors
from glimpse.media.containers.mp4 import checked_mp4
from glimpse.media.containers.sniff import AudioFormat, sniff_audio
from glimpse.media.containers.video import CONTAINER_OPTIONS
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_from_samples, resample_for_model

FloatArray = npt.NDArray[np.float32]

_DEMUXERS = {
    AudioFormat.WAV: "wav",
    AudioFormat.FLAC: "flac",
    AudioFormat.MP3: "mp3",
    AudioFormat.OGG: "ogg",
    AudioFormat.ADTS: "aac",
    AudioFormat.MP4: "mov",
    AudioFormat.MATROSKA: "matroska",
}
_PCM = ("s16le", "s16be", "s24le", "s24be", "s32le", "s32be", "f32le", "f32be", "f64le", "f64be", "u8", "alaw", "mulaw")
DECODERS = ("flac", "mp3float", "mp3", "vorbis", "opus", "libopus", "aac", "alac", *(f"pcm_{kind}" for kind in _PCM))
"""Decoders that may run."""
_NAMES = "PCM, FLAC, ALAC, MP3, AAC, Vorbis and Opus"
_FULL_SCALE = {np.dtype(np.int16): 1 << 15, np.dtype(np.int32): 1 << 31}


def audio_from_file(data: bytes, processing: AudioProcessing, *, stopped: Callable[[], bool] = lambda: False) -> Audio:
    """Makes a sound of a file, of whose channels the mean is heard.

    Args:
        data: the file; a video's first sound is heard.
        processing: the checkpoint's.
        stopped: asked between pieces whether nobody waits for the sound any more.

    Raises:
        MediaError: the file cannot be used.
    """
    return audio_from_samples(samples_from_file(data, processing, stopped=stopped), processing)


def samples_from_file(
    data: bytes, processing: AudioProcessing, *, stopped: Callable[[], bool] = lambda: False
) -> FloatArray:
    """What is heard of a file, as `resample_for_model` gives it. All that decodes is here.

    Raises:
        MediaError: the file cannot be used.
    """
    audio_format = sniff_audio(data)
    file = checked_mp4(data, hidden_kind=b"vide") if audio_format is AudioFormat.MP4 else BytesIO(data)
    with report_decode_errors("sound"):
        container: Any = av.open(
            file,
            format=_DEMUXERS[audio_format],
            options={"codec_whitelist": ",".join(DECODERS)},
            container_options=CONTAINER_OPTIONS,
        )
    with container, report_decode_errors("sound"):
        frames = container.decode(_audio_stream(container))
        first = next(frames, None)
        if first is None:
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "there is no sound in the file")
        return resample_for_model(
            _pieces(chain((first,), frames), first.sample_rate, stopped), first.sample_rate, processing
        )


def _audio_stream(container: Any) -> Any:
    if not container.streams.audio:
        raise MediaError(MediaErrorCode.INVALID_MEDIA, "there is no sound in the file")
    stream = container.streams.audio[0]
    codec = stream.codec_context
    if codec is None or codec.name not in DECODERS:
        message = f"the sound is of a codec that is not decoded; decoded are {_NAMES}"
        raise MediaError(MediaErrorCode.UNSUPPORTED_FORMAT, message)
    codec.thread_count = 1
    return stream


def _pieces(frames: Iterator[Any], rate: int, stopped: Callable[[], bool]) -> Iterator[FloatArray]:
    for frame in frames:
        if stopped():
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "nobody waits for the sound any more")
        if frame.sample_rate != rate:
            raise MediaError(MediaErrorCode.INVALID_MEDIA, "the sound's sampling rate changes on the way")
        yield _mono(frame)


def _mono(frame: Any) -> FloatArray:
    """[samples], the mean of the channels, full scale at 1."""
    values = (
        frame.to_ndarray()
    )  # [channels, samples], or [1, samples · channels] with the channels of a sample together
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        values = (values.astype(np.float32) - 128) / 128
    return (values.astype(np.float32) / _FULL_SCALE.get(values.dtype, 1)).mean(axis=0, dtype=np.float32)
