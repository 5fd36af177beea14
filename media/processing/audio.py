"""Audio preprocessing like Qwen2-Audio's: log-mel features, token count and content key.

Uses the features of Whisper's extractor in the way of Qwen2-Audio's processor and encoder. Audio is truncated to the
length that the checkpoint's extractor says, 30 s, as in the reference.
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
from glimpse.media.processing.resample import resample

FloatArray = npt.NDArray[np.float32]

RATES = range(4_000, 192_001)
"""Supported sampling rates in Hz. Lower rates would allow long audio in a few bytes."""
LARGEST_AMPLITUDE = 1e6
"""Full scale is 1. Samples beyond this limit would overflow in the features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioProcessing:
    """A checkpoint's audio preprocessing parameters."""

    sampling_rate: int
    """In Hz."""
    num_mel_bins: int
    fft_size: int
    """Samples per frame."""
    hop: int
    """Samples between the starts of frames."""
    max_samples: int
    """Length to which audio is truncated, or padded with silence before features are computed; a multiple of `hop`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    """Preprocessed audio."""

    kind: MediaKind = field(default=MediaKind.AUDIO, init=False)
    features: FloatArray
    """[mel bins, frames]: the frames that the encoder uses. If `n` frames begin within the audio, these are the first
    2 · ⌈n / 2⌉ + 1, or all if there are fewer. The reference's attention masks the others, which are silence.
    """
    num_tokens: int
    """Prompt tokens that the audio takes: one per four frames."""
    key: bytes
    """Content key: SHA-256 of the truncated samples and the parameters of the features."""
    duration_seconds: float
    """Duration after truncation."""

    @property
    def grid_thw(self) -> tuple[int, int, int]:
        """(1, mel bins, frames): the layout of the spectrogram, in the form of an image's grid."""
        num_bins, num_frames = self.features.shape
        return (1, num_bins, num_frames)


def audio_processing(path: Path) -> AudioProcessing:
    """Reads the `preprocessor_config.json` of an audio model.

    Raises:
        ValueError: The file is missing, is not JSON, or has unsupported values.
    """
    config = read_json(path / "preprocessor_config.json")
    for name, ours in (("feature_extractor_type", "WhisperFeatureExtractor"), ("dither", 0.0), ("padding_value", 0.0)):
        if config.get(name, ours) != ours:
            raise ValueError(f"preprocessor configuration: '{name}': expected {ours!r}, got {config[name]!r}")
    sampling_rate = positive("sampling_rate", config.get("sampling_rate", 16_000))
    if sampling_rate != 16_000:  # the reference's mel scale ends at 8 kHz for any rate
        raise ValueError(f"preprocessor configuration: 'sampling_rate': expected 16000, got {sampling_rate}")
    hop = positive("hop_length", config.get("hop_length", 160))
    return AudioProcessing(
        sampling_rate=sampling_rate,
        num_mel_bins=positive("feature_size", config.get("feature_size", 80)),
        fft_size=positive("n_fft", config.get("n_fft", 400)),
        hop=hop,
        max_samples=positive("chunk_length", config.get("chunk_length", 30)) * sampling_rate // hop * hop,
    )


def audio_from_array(array: npt.NDArray[Any], rate: int, processing: AudioProcessing) -> Audio:
    """Preprocesses an array of samples.

    Args:
        array: Floats [samples] or [channels, samples], full scale at 1. Channels are averaged.
        rate: In Hz.
        processing: The checkpoint's parameters.

    Raises:
        MediaError: The rate is not supported, or the samples are invalid.
    """
    per_channel = np.atleast_2d(array)[:, : _max_source_samples(rate, processing)].astype(np.float32)
    return audio_from_samples(resample_for_model([per_channel.mean(axis=0)], rate, processing), processing)


def resample_for_model(chunks: Iterable[FloatArray], rate: int, processing: AudioProcessing) -> FloatArray:
    """Resamples and truncates audio: returns [samples] at the checkpoint's rate, at most `max_samples`.

    Requests no more chunks than the result needs.

    Raises:
        MediaError: The rate is not supported; or from `chunks`.
    """
    if rate not in RATES:
        message = f"expected a sampling rate from {RATES[0]} to {RATES[-1]} Hz, got {rate}"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    return resample(chunks, rate, to=processing.sampling_rate, max_samples=processing.max_samples)


def audio_from_samples(samples: FloatArray, processing: AudioProcessing) -> Audio:
    """Preprocesses samples from `resample_for_model`.

    Raises:
        MediaError: INVALID_MEDIA: the audio is too short for a token, or its samples are not amplitudes.
    """
    num_audio_frames = -(-len(samples) // processing.hop)
    num_positions = -(-num_audio_frames // 2)  # the encoder's convolution has a stride of two frames
    if num_positions < 2:
        least, seconds = 2 * processing.hop / processing.sampling_rate, len(samples) / processing.sampling_rate
        message = f"expected audio of more than {least:g} s, got {seconds:g} s"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    if not np.all(np.abs(samples) <= LARGEST_AMPLITUDE):  # written so that NaN fails
        message = f"expected finite audio samples of magnitude up to {LARGEST_AMPLITUDE:g}, where full scale is 1"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    # The last window that overlaps the audio is centered one frame after it, so the maximum is among these frames.
    num_frames = min(num_audio_frames + 2, processing.max_samples // processing.hop)
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


def _max_source_samples(rate: int, processing: AudioProcessing) -> int:
    """Returns how many samples at this rate can affect the result, including the filter's look-ahead."""
    return (processing.max_samples // processing.sampling_rate + 1) * rate
