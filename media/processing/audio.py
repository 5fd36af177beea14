"""A sound as the engine takes it: log-mel features of what is heard of it, their tokens, its content key.

Knows Whisper's feature extractor and how Qwen2-Audio's processor and encoder use it. A sound is heard for as long as
the checkpoint's extractor says, 30 s; the rest is cut off, as the reference does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.key import audio_key
from glimpse.media.kind import MediaKind
from glimpse.media.processing.mel import log_mel
from glimpse.media.processing.preprocessor import positive, read_json
from glimpse.media.processing.resample import resampled

FloatArray = npt.NDArray[np.float32]

RATES = range(4_000, 192_001)
"""Sampling rates in Hz that are understood. A lower one would make a long sound of a few bytes."""
LARGEST_AMPLITUDE = 1e6
"""Full scale is 1; what is this far beyond it would overflow in the features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioProcessing:
    """How a checkpoint wants its sounds."""

    sampling_rate: int
    """In Hz."""
    num_mel_bins: int
    fft_size: int
    """Samples of a frame."""
    hop: int
    """Samples from a frame to the next."""
    max_samples: int
    """What is heard of a sound, a multiple of `hop`; silence fills it up before features are made."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    """An audio input that is ready for the engine."""

    kind: MediaKind = field(default=MediaKind.AUDIO, init=False)
    features: FloatArray
    """[mel bins, frames]: the frames at which the encoder looks, which are 2 · ⌈heard / 2⌉ + 1 where `heard` frames
    begin within the sound, and no more than there are. Those beyond, silence, the reference masks in its attention.
    """
    num_tokens: int
    """Tokens that it takes in a prompt: one for four frames."""
    key: bytes
    """SHA-256 of the samples that are heard and of how they become features."""
    duration_seconds: float
    """Of what is heard."""

    @property
    def grid_thw(self) -> tuple[int, int, int]:
        """1, the mel bins and the frames: how a spectrogram is laid out, in the words of pictures."""
        num_bins, num_frames = self.features.shape
        return (1, num_bins, num_frames)


def audio_processing(path: Path) -> AudioProcessing:
    """Reads the `preprocessor_config.json` of a checkpoint that hears.

    Raises:
        ValueError: it is not there, is not JSON, or asks for what is not done here.
    """
    config = read_json(path / "preprocessor_config.json")
    for name, ours in (("feature_extractor_type", "WhisperFeatureExtractor"), ("dither", 0.0), ("padding_value", 0.0)):
        if config.get(name, ours) != ours:
            raise ValueError(f"the preprocessor's configuration has a {name} other than {ours}")
    sampling_rate = positive("sampling_rate", config.get("sampling_rate", 16_000))
    if sampling_rate != 16_000:  # the reference's mel scale ends at 8 kHz, whatever the rate
        raise ValueError("the preprocessor's configuration has a sampling_rate other than 16000")
    hop = positive("hop_length", config.get("hop_length", 160))
    return AudioProcessing(
        sampling_rate=sampling_rate,
        num_mel_bins=positive("feature_size", config.get("feature_size", 80)),
        fft_size=positive("n_fft", config.get("n_fft", 400)),
        hop=hop,
        max_samples=positive("chunk_length", config.get("chunk_length", 30)) * sampling_rate // hop * hop,
    )


def audio_from_array(array: npt.NDArray[Any], rate: int, processing: AudioProcessing) -> Audio:
    """Makes a sound of an array.

    Args:
        array: floats, full scale at 1, [samples] or [channels, samples].
        rate: samples a second.
        processing: the checkpoint's.

    Raises:
        MediaError: the rate or the samples are none.
    """
    per_channel = np.atleast_2d(array)[:, : _num_heard(rate, processing)].astype(np.float32)
    return audio_from_samples(resample_for_model([per_channel.mean(axis=0)], rate, processing), processing)


def resample_for_model(pieces: Iterable[FloatArray], rate: int, processing: AudioProcessing) -> FloatArray:
    """What is heard of a sound that comes in pieces: [samples] at the checkpoint's rate, at most `max_samples`.

    No more pieces are asked for than that takes.

    Raises:
        MediaError: the rate is not understood; or what `pieces` raises.
    """
    if rate not in RATES:
        message = f"the sound has {rate} samples a second; understood are {RATES[0]} to {RATES[-1]}"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    return resampled(pieces, rate, to=processing.sampling_rate, max_samples=processing.max_samples)


def audio_from_samples(samples: FloatArray, processing: AudioProcessing) -> Audio:
    """Makes a sound of what `resample_for_model` gives.

    Raises:
        MediaError: INVALID_MEDIA: it is too short for a token, or its samples are no amplitudes.
    """
    num_heard = -(-len(samples) // processing.hop)  # frames
    num_positions = -(-num_heard // 2)  # of the encoder, which looks at two frames and their neighbours at a time
    if num_positions < 2:
        message = f"the sound lasts {len(samples) / processing.sampling_rate:g} s, which is too short to be heard"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    if not np.all(np.abs(samples) <= LARGEST_AMPLITUDE):  # written so that NaN fails
        message = "the sound has samples that are not finite, or far beyond full scale"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    # The last window that reaches into the sound is centred one frame after it: the loudest place is among these.
    num_frames = min(num_heard + 2, processing.max_samples // processing.hop)
    features = log_mel(
        samples,
        num_frames,
        length=processing.max_samples,
        sampling_rate=processing.sampling_rate,
        fft_size=processing.fft_size,
        hop=processing.hop,
        num_bins=processing.num_mel_bins,
    )
    return Audio(
        features=np.ascontiguousarray(features[:, : 2 * num_positions + 1]),
        num_tokens=num_positions // 2,
        key=audio_key(samples, processing.sampling_rate, processing.fft_size, processing.hop, processing.num_mel_bins),
        duration_seconds=len(samples) / processing.sampling_rate,
    )


def _num_heard(rate: int, processing: AudioProcessing) -> int:
    """Samples at this rate of which no more than what is heard can be made, and what a filter sees beyond."""
    return (processing.max_samples // processing.sampling_rate + 1) * rate
