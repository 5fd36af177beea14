"""Synthetic audio for tests: tones, noise, and files of them."""

from fractions import Fraction
from io import BytesIO
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from glimpse.media.processing.audio import AudioProcessing

PROCESSING = AudioProcessing(sampling_rate=16_000, num_mel_bins=128, fft_size=400, hop=160, max_samples=480_000)
"""Audio processing of Qwen2-Audio."""
FILES = {
    "wav": ("wav", "pcm_s16le"),
    "wav, 24 bits": ("wav", "pcm_s24le"),
    "wav, floats": ("wav", "pcm_f32le"),
    "wav, 8 bits": ("wav", "pcm_u8"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "ogg, Opus": ("ogg", "libopus"),
    "ogg, Vorbis": ("ogg", "vorbis"),
    "m4a, AAC": ("ipod", "aac"),
    "m4a, ALAC": ("ipod", "alac"),
    "aac": ("adts", "aac"),
    "webm, Opus": ("webm", "libopus"),
    "mkv, PCM": ("matroska", "pcm_s16le"),
    "avi, PCM": ("avi", "pcm_s16le"),
}
"""Container and encoder of each kind of file."""


def tone(hertz: float, rate: int, seconds: float) -> npt.NDArray[np.float32]:
    """Returns a sine wave at half of full scale, [samples]."""
    times = np.arange(round(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def noise(seed: int, num_samples: int) -> npt.NDArray[np.float32]:
    """Returns noise that grows louder, rounded to 16-bit steps, [samples]."""
    loud = np.random.default_rng(seed).uniform(-0.5, 0.5, num_samples) * np.linspace(0.1, 1, num_samples)
    return (np.round(loud * 32768) / 32768).astype(np.float32)


def audio_file(
    samples: npt.NDArray[np.float32], rate: int, *, container: str = "wav", codec: str = "pcm_s16le"
) -> bytes:
    """Returns a deterministic file of [samples] or [channels, samples]."""
    file = BytesIO()
    channels = np.atleast_2d(samples)
    layout = {1: "mono", 2: "stereo", 3: "2.1", 6: "5.1", 8: "7.1"}[len(channels)]
    options = {"strict": "experimental", "fflags": "+bitexact"}
    with av.open(file, "w", format=container, options=options) as output:
        stream: Any = output.add_stream(codec, rate=rate, layout=layout, options={"strict": "experimental"})
        interleaved = np.ascontiguousarray(channels.T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=layout)
        frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
        resampler = av.AudioResampler(
            format=stream.codec_context.format.name,
            layout=layout,
            rate=rate,
            frame_size=stream.codec_context.frame_size,
        )
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return file.getvalue()
