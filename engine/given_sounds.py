"""What callers of the offline door pass as sounds, made into typed inputs. Decodes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.given import InputError, known_fields
from media.errors import MediaError
from media.source import DataSource, Source, parse_url_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """A sound that needs no decoding."""

    array: npt.NDArray[Any]
    """Floats, [samples] or [channels, samples], full scale at 1."""
    rate: int
    """Samples a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoundInput:
    """A sound of a request."""

    sound: Source | Samples
    path: str
    """Where the caller wrote it, for errors."""


def parse_sounds(value: object, path: str) -> list[SoundInput]:
    """One sound or a list of them, each as in `parse_sound`. Raises InputError."""
    several = [value] if not isinstance(value, list | tuple) or _is_samples(value) else value
    return [parse_sound(sound, f"{path}[{index}]") for index, sound in enumerate(several)]


def parse_sound(sound: object, path: str) -> SoundInput:
    """A pair of an array or tensor and its rate, a file's bytes, a URL, a data URL or base64. Raises InputError."""
    match sound:
        case (array, int() | float() | np.number() as rate):
            return SoundInput(sound=Samples(array=_checked_array(array, path), rate=_whole(rate, path)), path=path)
        case bytes():
            return SoundInput(sound=DataSource(data=sound), path=path)
        case str():
            return SoundInput(sound=_parse_text(sound, path), path=path)
        case _:
            message = f"a sound is a pair (array, rate), bytes or a URL, not {type(sound).__name__}"
            raise InputError(path, message)


def parse_audio_url(audio_url: object, path: str) -> SoundInput:
    """A URL, or an object of one. Raises InputError."""
    if isinstance(audio_url, str):
        return parse_sound(audio_url, path)
    url = known_fields(audio_url, path, known=("url",)).get("url")
    if not isinstance(url, str):
        raise InputError(f"{path}.url", "a sound's URL is a text")
    return parse_sound(url, f"{path}.url")


def parse_input_audio(input_audio: object, path: str) -> SoundInput:
    """An object of base64 and the name of a format, which the file's first bytes say better. Raises InputError."""
    fields = known_fields(input_audio, path, known=("data", "format"))
    data = fields.get("data")
    if not isinstance(data, str) or not isinstance(fields.get("format"), str | None):
        raise InputError(path, "expected data, a text of base64, and perhaps format, a text")
    parsed = _parse_text(data, f"{path}.data")
    if not isinstance(parsed, DataSource):
        raise InputError(f"{path}.data", "it is not base64; a URL stands in audio_url")
    return SoundInput(sound=parsed, path=f"{path}.data")


def _is_samples(value: Sequence[object]) -> bool:
    return len(value) == 2 and isinstance(value[1], int | float | np.number)


def _parse_text(text: str, path: str) -> Source:
    try:
        return parse_url_text(text)
    except MediaError as error:
        raise InputError(path, error.message) from error


def _checked_array(value: object, path: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor on another device, or one with gradients
        raise InputError(path, f"no array can be made of {type(value).__name__}") from error
    if array.dtype.kind != "f" or array.ndim not in (1, 2) or not array.size:
        shape = f"{array.dtype} {list(array.shape)}"
        raise InputError(path, f"an array is of floats, [samples] or [channels, samples], not {shape}")
    return array


def _whole(rate: float | np.number[Any], path: str) -> int:
    if int(rate) != rate:
        raise InputError(path, f"a rate of {rate} samples a second is not a whole number")
    return int(rate)
