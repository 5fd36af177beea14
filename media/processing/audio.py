"""Audio preprocessing like Qwen2-Audio's, Ultravox's and Gemma 4's: log-mel features, or samples, and content key.

The features of the first two are those of Whisper's extractor, in the way of these models' processors. Qwen2-Audio's
and Gemma 4's truncate audio to the length that the checkpoint's extractor says, 30 s.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.key import audio_key
from glimpse.media.kind import MediaKind
from glimpse.media.processing.mel import log_mel, log_mel_magnitudes
from glimpse.media.processing.preprocessor import check_fields, positive, read_feature_extractor

FloatArray = npt.NDArray[np.float32]

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
    """Length to which audio is truncated; a multiple of `hop`."""
    pads_to_max: bool = True
    """For Whisper's features, audio is padded with silence to `max_samples`; else to a multiple of `hop`, and at least
    two of them, as for Ultravox."""
    floor: float | None = None
    """The features are those of `log_mel_magnitudes`; None: Whisper's."""
    is_raw: bool = False
    """The features of a frame are its samples, as many as `hop` and `num_mel_bins`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    """Preprocessed audio."""

    kind: MediaKind = field(default=MediaKind.AUDIO, init=False)
    features: FloatArray
    """[mel bins, frames]: the frames that the encoder uses. If `n` frames begin within the audio, these are the first
    2 · ⌈n / 2⌉ + 1, or all if there are fewer. The reference's attention masks the others, which are silence. Without
    `pads_to_max` these are n, at least two, with a `floor` n - 1, and n where they are raw.
    """
    key: bytes
    """Content key: SHA-256 of the truncated samples and the parameters of the features."""
    duration_seconds: float
    """Duration after truncation."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """(1, mel bins, frames): the layout of the spectrogram, in the form of an image's grid."""
        num_bins, num_frames = self.features.shape
        return (1, num_bins, num_frames)


def audio_processing(path: Path) -> AudioProcessing:
    """Reads the feature extractor of an audio model.

    Raises:
        ValueError: a file is missing, is not JSON, or has unsupported values.
    """
    config = read_feature_extractor(path)
    expected = {"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0.0, "padding_value": 0.0}
    check_fields(config, "preprocessor configuration", expected)
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


def audio_from_samples(samples: FloatArray, processing: AudioProcessing) -> Audio:
    """Preprocesses samples from `resample_for_model` (`glimpse.media.processing.audio_samples`).

    Raises:
        MediaError: INVALID_MEDIA: the audio is too short for a token, or its samples are not amplitudes.
    """
    num_audio_frames = -(-len(samples) // processing.hop)
    num_hops = 1 if processing.floor is not None else 2 if processing.pads_to_max else 0
    if num_audio_frames <= num_hops:
        least = num_hops * processing.hop / processing.sampling_rate
        message = f"expected audio of more than {least:g} s, got {len(samples) / processing.sampling_rate:g} s"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    if not np.all(np.abs(samples) <= LARGEST_AMPLITUDE):  # written so that NaN fails
        message = f"expected finite audio samples of magnitude up to {LARGEST_AMPLITUDE:g}, where full scale is 1"
        raise MediaError(MediaErrorCode.INVALID_MEDIA, message)
    features = _features(samples, num_audio_frames, processing)
    return Audio(
        features=np.ascontiguousarray(features),
        key=audio_key(samples, processing.sampling_rate, processing.fft_size, processing.hop, processing.num_mel_bins),
        duration_seconds=len(samples) / processing.sampling_rate,
    )


def _features(samples: FloatArray, num_audio_frames: int, processing: AudioProcessing) -> FloatArray:
    if processing.is_raw:
        return np.pad(samples, (0, -len(samples) % processing.hop)).reshape(-1, processing.hop).T
    if processing.floor is not None:
        return log_mel_magnitudes(
            samples,
            sampling_rate=processing.sampling_rate,
            fft_size=processing.fft_size,
            hop=processing.hop,
            num_bins=processing.num_mel_bins,
            floor=processing.floor,
        )
    if processing.pads_to_max:
        # The last window that overlaps the audio is centered one frame after it, so the maximum is among these frames.
        num_frames, length = min(num_audio_frames + 2, processing.max_samples // processing.hop), processing.max_samples
        num_kept = 2 * -(-num_audio_frames // 2) + 1  # the encoder's convolution has a stride of two frames
    else:
        num_kept = num_frames = max(num_audio_frames, 2)
        length = num_frames * processing.hop
    features = log_mel(
        samples,
        num_frames,
        length=length,
        sampling_rate=processing.sampling_rate,
        fft_size=processing.fft_size,
        hop=processing.hop,
        num_bins=processing.num_mel_bins,
    )
    return features[:, :num_kept]
