"""Log-mel spectrograms as Whisper's feature extractor makes them. Pure arithmetic; knows no files and no models.

The reference is transformers' models/whisper/feature_extraction_whisper.py, the mel scale that of Slaney's Auditory
Toolbox: linear up to 1 kHz, logarithmic above.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_POWER_FLOOR = 1e-10
_DECADES = 8.0
"""What is this much quieter than the loudest is as quiet as that."""
_LINEAR_MELS = 15.0
"""Up to here mels are 200/3 Hz each."""
_MELS_PER_E_FOLD = 27.0 / np.log(6.4)


def log_mel(
    samples: FloatArray, num_frames: int, *, length: int, sampling_rate: int, fft_size: int, hop: int, num_bins: int
) -> FloatArray:
    """The log-mel spectrogram of a sound that silence makes `length` samples long.

    Args:
        samples: [samples], at most `length`.
        num_frames: how many are computed, from the first, at most length // hop; at least all in which the sound is.
        length: of what is transformed.
        sampling_rate: in Hz.
        fft_size: samples of a frame.
        hop: samples from a frame to the next.
        num_bins: of the mel scale.

    Returns:
        [num_bins, num_frames], of which the largest is 8 decades, that is 2, above the least.
    """
    silence = np.pad(samples, (0, length - len(samples)))
    centred = np.pad(silence, fft_size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(centred, fft_size)[::hop][:num_frames]
    spectrum = np.fft.rfft(frames * _window(fft_size))  # [num_frames, fft_size / 2 + 1]
    power = spectrum.real**2 + spectrum.imag**2
    mels = mel_filters(num_bins, fft_size, sampling_rate) @ power.T  # [num_bins, num_frames]
    decades = np.log10(np.maximum(mels, _POWER_FLOOR))
    return ((np.maximum(decades, decades.max() - _DECADES) + 4) / 4).astype(np.float32)


@cache
def mel_filters(num_bins: int, fft_size: int, sampling_rate: int) -> FloatArray:
    """[num_bins, fft_size / 2 + 1]: triangles between neighbours' centres, each of the same area."""
    highest = _LINEAR_MELS + np.log(sampling_rate / 2 / 1000) * _MELS_PER_E_FOLD
    edges = _hertz(np.linspace(0, highest, num_bins + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = np.linspace(0, sampling_rate / 2, fft_size // 2 + 1)
    triangles = np.minimum((frequencies - low) / (centre - low), (high - frequencies) / (high - centre))
    return (np.maximum(triangles, 0) * 2 / (high - low)).astype(np.float32)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = 1000 * np.exp((mels - _LINEAR_MELS) / _MELS_PER_E_FOLD)
    return np.where(mels < _LINEAR_MELS, mels * 200 / 3, above)


@cache
def _window(size: int) -> FloatArray:
    """Hann's, periodic."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
