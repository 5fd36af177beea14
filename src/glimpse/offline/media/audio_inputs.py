"""Reads the audio inputs that callers of `LLM` pass. Decodes nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.media.sources.decoded import AudioSamples
from glimpse.media.sources.source import DataSource
from glimpse.offline.fields import InputError

MAX_CHANNELS = 16
"""Most channels of an array: as many as those of high-order ambisonics or 9.1.6 loudspeakers."""


def read_audio(audio: object, field: str) -> object:
    """Returns samples with their rate or the bytes of a file as a source, and what JSON has as it is.

    Raises:
        InputError: it is something else.
    """
    match audio:
        case None | str() | Mapping():
            return audio
        case bytes():
            return DataSource(data=audio)
        case (array, int() | float() | np.number() as rate):
            return AudioSamples(array=_checked_array(array, field), rate=_checked_rate(rate, field))
        case _:
            raise InputError(field, f"expected a pair (samples, rate), bytes or a URL, got {type(audio).__name__}")


def is_samples(value: Sequence[object]) -> bool:
    """Returns whether a sequence is one audio input: a pair of samples and their rate."""
    return len(value) == 2 and isinstance(value[1], int | float | np.number)


def _checked_array(value: object, field: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on another device, or one that requires gradients
        raise InputError(field, f"expected an array of samples, got {type(value).__name__}") from error
    if array.dtype.kind != "f" or array.ndim not in (1, 2) or not array.size:
        got = f"{array.dtype} {list(array.shape)}"
        message = f"expected an array of floats, [samples], [channels, samples] or [samples, channels], got {got}"
        raise InputError(field, message)
    return array if array.ndim == 1 else _channels_first(array, field)


def _channels_first(array: npt.NDArray[Any], field: str) -> npt.NDArray[Any]:
    """Returns [channels, samples]. The shorter axis is the channels: soundfile has them last, torchaudio first."""
    first, last = array.shape
    if first != last and min(first, last) <= MAX_CHANNELS:
        return array if first < last else array.T
    if first == last == 1:
        return array
    message = f"expected [channels, samples] or [samples, channels] with 1 to {MAX_CHANNELS} channels"
    raise InputError(field, f"{message} and more samples than channels, got {list(array.shape)}; pass their mean")


def _checked_rate(rate: float | np.number[Any], field: str) -> int:
    if int(rate) != rate:
        raise InputError(field, f"expected an integer number of samples per second, got {rate}")
    return int(rate)
