"""Parses the audio inputs that callers of `LLM` pass. Decodes nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.media.inputs import AudioInput
from glimpse.media.sources.decoded import AudioSamples
from glimpse.media.sources.source import DataSource
from glimpse.offline.fields import InputError, by_reference, known_fields, parse_source, parse_url

MAX_CHANNELS = 16
"""Most channels of an array: as many as those of high-order ambisonics or 9.1.6 loudspeakers."""


def parse_audio(audio: object, field: str, uuid: str | None = None) -> AudioInput:
    """Parses a pair of samples and their rate, or what `parse_source` does. Raises InputError."""
    source = parse_source(audio, field, uuid) or _samples(audio, field)
    return AudioInput(source=source, field=field, uuid=uuid)


def parse_audio_url(audio_url: object, field: str, uuid: str | None = None) -> AudioInput:
    """Parses an `audio_url` content part. Raises InputError."""
    if isinstance(audio_url, str | None):
        return parse_audio(audio_url, field, uuid)
    url = known_fields(audio_url, field, known=("url",)).get("url")
    if not isinstance(url, str | None):
        raise InputError(f"{field}.url", f"expected a URL, got {type(url).__name__}")
    return parse_audio(url, f"{field}.url", uuid)


def parse_input_audio(input_audio: object, field: str, uuid: str | None = None) -> AudioInput:
    """Parses an `input_audio` content part. Its `format` is ignored: the file's first bytes decide.

    Raises:
        InputError: it is not a dict of base64 `data` and perhaps `format`.
    """
    audio_fields = known_fields({} if input_audio is None else input_audio, field, known=("data", "format"))
    data = audio_fields.get("data")
    if data is None and uuid is not None:
        return AudioInput(source=by_reference(uuid, field), field=field, uuid=uuid)
    if not isinstance(data, str) or not isinstance(audio_fields.get("format"), str | None):
        raise InputError(field, "expected data, a base64 string, and optionally format, a string")
    source = parse_url(data, f"{field}.data")
    if not isinstance(source, DataSource):
        raise InputError(f"{field}.data", "expected base64, got a URL; use audio_url for it")
    return AudioInput(source=source, field=f"{field}.data", uuid=uuid)


def is_samples(value: Sequence[object]) -> bool:
    """Returns whether a sequence is one audio input: a pair of samples and their rate."""
    return len(value) == 2 and isinstance(value[1], int | float | np.number)


def _samples(audio: object, field: str) -> AudioSamples:
    match audio:
        case (array, int() | float() | np.number() as rate):
            return AudioSamples(array=_checked_array(array, field), rate=_checked_rate(rate, field))
        case _:
            raise InputError(field, f"expected a pair (samples, rate), bytes or a URL, got {type(audio).__name__}")


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
