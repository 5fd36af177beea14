"""What callers of the offline door pass as sounds, made into typed inputs. Decodes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glimpse.engine.offline.visual_inputs import InputError, known_fields, left_out
from glimpse.media.errors import MediaError
from glimpse.media.kind import MediaKind
from glimpse.media.sources.source import AudioOrCached, DataSource, Source, parse_url_text


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """A sound that needs no decoding."""

    array: npt.NDArray[Any]
    """Floats, [samples] or [channels, samples], full scale at 1."""
    rate: int
    """Samples a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioInput:
    """A sound of a request."""

    kind: ClassVar = MediaKind.AUDIO
    sound: AudioOrCached | Samples
    path: str
    """Where the caller wrote it, for errors."""
    uuid: str | None = None
    """The caller's name for it, under which it is kept."""


def parse_audio(sound: object, path: str, uuid: str | None = None) -> AudioInput:
    """A pair of an array or tensor and its rate, a file's bytes, a URL, a data URL or base64; None: it is left out.

    Raises:
        InputError: it is something else.
    """
    return AudioInput(sound=_parse_audio(sound, path, uuid), path=path, uuid=uuid)


def parse_audio_url(audio_url: object, path: str, uuid: str | None = None) -> AudioInput:
    """A URL, or an object of one; None: it is left out. Raises InputError."""
    if isinstance(audio_url, str | None):
        return parse_audio(audio_url, path, uuid)
    url = known_fields(audio_url, path, known=("url",)).get("url")
    if not isinstance(url, str | None):
        raise InputError(f"{path}.url", "a sound's URL is a text")
    return parse_audio(url, f"{path}.url", uuid)


def parse_input_audio(input_audio: object, path: str, uuid: str | None = None) -> AudioInput:
    """An object of base64 and the name of a format, which the file's first bytes say better; None: it is left out.

    Raises:
        InputError: it is something else.
    """
    fields = known_fields({} if input_audio is None else input_audio, path, known=("data", "format"))
    data = fields.get("data")
    if data is None and uuid is not None:
        return AudioInput(sound=left_out(uuid, path), path=path, uuid=uuid)
    if not isinstance(data, str) or not isinstance(fields.get("format"), str | None):
        raise InputError(path, "expected data, a text of base64, and perhaps format, a text")
    parsed = _parse_text(data, f"{path}.data")
    if not isinstance(parsed, DataSource):
        raise InputError(f"{path}.data", "it is not base64; a URL stands in audio_url")
    return AudioInput(sound=parsed, path=f"{path}.data", uuid=uuid)


def is_samples(value: Sequence[object]) -> bool:
    """Whether callers mean one sound, a pair of an array and its rate."""
    return len(value) == 2 and isinstance(value[1], int | float | np.number)


def _parse_audio(sound: object, path: str, uuid: str | None) -> AudioOrCached | Samples:
    match sound:
        case None:
            return left_out(uuid, path)
        case (array, int() | float() | np.number() as rate):
            return Samples(array=_checked_array(array, path), rate=_whole(rate, path))
        case bytes():
            return DataSource(data=sound)
        case str():
            return _parse_text(sound, path)
        case _:
            message = f"a sound is a pair (array, rate), bytes or a URL, not {type(sound).__name__}"
            raise InputError(path, message)


def _parse_text(text: str, path: str) -> Source:
    try:
        return parse_url_text(text)
    except MediaError as error:
        raise InputError(path, error.message, error.code) from error


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
