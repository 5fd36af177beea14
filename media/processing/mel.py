"""Log-mel spectrograms, equal to those of Whisper's feature extractor and of Gemma 4's. Pure arithmetic.

Whisper's reference is models/whisper/feature_extraction_whisper.py of transformers. Its mel scale is that of Slaney's
Auditory Toolbox: linear up to 1 kHz, logarithmic above.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_POWER_FLOOR = 1e-10
_DECADES = 8.0
"""Dynamic range: values further below the maximum are raised to its lower end."""
_SLICE_FRAMES = 3000
"""Frames that are transformed at once, which bounds memory."""
_LINEAR_MELS = 15.0
"""End of the linear part of the mel scale, where a mel is 200/3 Hz."""
_MELS_PER_E_FOLD = 27.0 / np.log(6.4)


def log_mel(
    samples: FloatArray, num_frames: int, *, length: int, sampling_rate: int, fft_size: int, hop: int, num_bins: int
) -> FloatArray:
    """Returns the log-mel spectrogram of audio that is padded with silence to `length` samples.

    Args:
        samples: [samples], at most `length`.
        num_frames: Number of leading frames to compute, at most length // hop. Must include all frames with audio,
            because values are relative to the maximum.
        length: Samples after padding.
        sampling_rate: In Hz.
        fft_size: Samples per frame.
        hop: Samples between the starts of frames.

    Returns:
        [num_bins, num_frames]. The maximum is at most 2 (8 decades / 4) above the minimum.
    """
    padded = np.pad(samples, (0, length - len(samples)))
    centered = np.pad(padded, fft_size // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(centered, fft_size)[::hop][:num_frames]
    filters, window = mel_filters(num_bins, fft_size, sampling_rate), _window(fft_size)
    slices = (frames[start : start + _SLICE_FRAMES] for start in range(0, num_frames, _SLICE_FRAMES))
    mels = np.concatenate([filters @ _power(each * window).T for each in slices], axis=1)  # [num_bins, num_frames]
    decades = np.log10(np.maximum(mels, _POWER_FLOOR))
    return ((np.maximum(decades, decades.max() - _DECADES) + 4) / 4).astype(np.float32)


def _power(frames: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Returns [frames, fft_size / 2 + 1] of [frames, fft_size]."""
    spectrum = np.fft.rfft(frames)
    return spectrum.real**2 + spectrum.imag**2


@cache
def mel_filters(num_bins: int, fft_size: int, sampling_rate: int) -> FloatArray:
    """Returns [num_bins, fft_size / 2 + 1]: triangular filters between neighboring centers, all of the same area."""
    highest = _LINEAR_MELS + np.log(sampling_rate / 2 / 1000) * _MELS_PER_E_FOLD
    edges = _hertz(np.linspace(0, highest, num_bins + 2))
    return (_triangles(edges, fft_size, sampling_rate) * 2 / (edges[2:] - edges[:-2])[:, None]).astype(np.float32)


def _triangles(edges: npt.NDArray[np.float64], fft_size: int, sampling_rate: int) -> npt.NDArray[np.float64]:
    """Returns [len(edges) - 2, fft_size / 2 + 1]: triangles of height 1, from one edge over the next to the third."""
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = np.linspace(0, sampling_rate / 2, fft_size // 2 + 1)
    return np.maximum(np.minimum((frequencies - low) / (center - low), (high - frequencies) / (high - center)), 0)


def log_mel_magnitudes(
    samples: FloatArray, *, sampling_rate: int, fft_size: int, hop: int, num_bins: int, floor: float
) -> FloatArray:
    """Returns the features of Universal Speech Models (arXiv 2303.01037) as Gemma 4's extractor makes them.

    Windows of two hops begin one hop before the audio, on HTK's mel scale. Those that end after the audio are left out,
    which the reference (models/gemma4/feature_extraction_gemma4.py of transformers) masks.

    Args:
        samples: [samples], more than `hop`.
        sampling_rate: In Hz.
        fft_size: Samples of a transform, at least 2 · hop.
        hop: Samples between the starts of windows.
        floor: Added to magnitudes.

    Returns:
        [num_bins, ⌈samples / hop⌉ - 1], natural logarithms.
    """
    num_frames = -(-len(samples) // hop) - 1
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (hop, 0)), 2 * hop)[::hop][:num_frames]
    filters, window = _htk_filters(num_bins, fft_size, sampling_rate), _window(2 * hop)
    slices = (frames[start : start + _SLICE_FRAMES] for start in range(0, num_frames, _SLICE_FRAMES))
    magnitudes = (np.abs(np.fft.rfft(each * window, n=fft_size)) for each in slices)
    return np.log(np.concatenate([filters @ each.T for each in magnitudes], axis=1) + floor).astype(np.float32)


@cache
def _htk_filters(num_bins: int, fft_size: int, sampling_rate: int) -> npt.NDArray[np.float64]:
    mels = np.linspace(0, 2595 * np.log10(1 + sampling_rate / 2 / 700), num_bins + 2)
    return _triangles(700 * (10 ** (mels / 2595) - 1), fft_size, sampling_rate)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = 1000 * np.exp((mels - _LINEAR_MELS) / _MELS_PER_E_FOLD)
    return np.where(mels < _LINEAR_MELS, mels * 200 / 3, above)


@cache
def _window(size: int) -> FloatArray:
    """Returns the periodic Hann window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
