"""Parses the options of `LLM` that say where media may be fetched from, and how they are read."""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Literal

from glimpse.engine.protocol.option_values import read_size
from glimpse.media.kind import MediaKind
from glimpse.media.limits import FETCH_TIMEOUTS
from glimpse.media.processing.media_processing import ProcessingDefaults
from glimpse.media.processing.rgb import Colour
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.policy import FetchPolicy, host_name
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.media.media_defaults import parse_defaults

_WHITE: Colour = (255, 255, 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRules:
    """Rules for all media of one `LLM`."""

    policy: FetchPolicy
    local: LocalFiles | None
    """None: file: URLs are refused."""
    fetch_timeouts: Mapping[MediaKind, float]
    """Seconds, by kind of media."""
    defaults: ProcessingDefaults
    """Defaults of all media."""
    max_cache_bytes: int
    """Memory for the media cache."""


def parse_rules(
    *,
    allowed_local_media_path: str | os.PathLike[str] | None,
    allowed_media_domains: Sequence[str] | None,
    allowed_media_networks: Sequence[str],
    allowed_media_ports: Sequence[int],
    fetch_timeouts: Mapping[str, float],
    media_io_kwargs: Mapping[str, Any],
    mm_processor_kwargs: Mapping[str, Any],
    max_cache_bytes: int,
) -> MediaRules:
    """Raises InputError if an option is out of range or unknown."""
    return MediaRules(
        policy=FetchPolicy(
            allowed_domains=None if allowed_media_domains is None else _domains(allowed_media_domains),
            allowed_networks=tuple(map(_network, allowed_media_networks)),
            allowed_ports=frozenset(allowed_media_ports),
        ),
        local=None if not allowed_local_media_path else _folder(Path(allowed_local_media_path)),
        fetch_timeouts=FETCH_TIMEOUTS | _variables(os.environ) | _timeouts(fetch_timeouts),
        defaults=_defaults(media_io_kwargs, mm_processor_kwargs),
        max_cache_bytes=max_cache_bytes,
    )


def _domains(domains: Sequence[str]) -> frozenset[str]:
    if isinstance(domains, str):
        raise InputError("allowed_media_domains", "expected a list of hosts, got a string")
    try:
        return frozenset(map(host_name, domains))
    except ValueError as error:
        raise InputError("allowed_media_domains", str(error)) from error


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise InputError("allowed_media_networks", str(error)) from error


def _folder(path: Path) -> LocalFiles:
    try:
        return LocalFiles(path)
    except ValueError as error:
        raise InputError("allowed_local_media_path", str(error)) from error


def _timeouts(timeouts: Mapping[str, float]) -> dict[MediaKind, float]:
    for kind, seconds in known_fields(timeouts, "fetch_timeouts", known=tuple(MediaKind)).items():
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise InputError(f"fetch_timeouts.{kind}", f"expected a number of seconds above 0, got {seconds!r}")
    return {MediaKind(kind): seconds for kind, seconds in timeouts.items()}


def _variables(environment: Mapping[str, str]) -> dict[MediaKind, float]:
    """Reads the time-outs that environment variables set, under the server's names or vLLM's."""
    timeouts: dict[MediaKind, float] = {}
    for kind, prefix in itertools.product(MediaKind, ("VLLM", "GLIMPSE")):
        name = f"{prefix}_{kind.upper()}_FETCH_TIMEOUT"
        if (text := environment.get(name)) is None:
            continue
        try:
            timeouts |= _timeouts({kind: float(text)})
        except ValueError:  # also what `_timeouts` raises
            raise InputError(name, f"expected a number of seconds above 0, got {text!r}") from None
    return timeouts


def parse_cache_bytes(size: object) -> int:
    """Returns a number of bytes, which may be written with a unit. Raises InputError."""
    num_bytes = read_size(size)
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes < 0:
        raise InputError("media_cache_bytes", f"expected a size such as '512MiB', got {size!r}")
    return num_bytes


def _defaults(media_io_kwargs: Mapping[str, Any], mm_processor_kwargs: Mapping[str, Any]) -> ProcessingDefaults:
    max_pixels = _checkpoint_bound(mm_processor_kwargs)
    own = {name: value for name, value in mm_processor_kwargs.items() if name != "max_pixels" or max_pixels is None}
    parsed = parse_defaults(media_io_kwargs, own)
    return ProcessingDefaults(
        background=parsed.background or _WHITE,
        min_pixels=parsed.min_pixels,
        max_pixels=max_pixels or parsed.max_pixels,
        fps=parsed.fps,
        num_frames=parsed.num_frames,
    )


def _checkpoint_bound(mm_processor_kwargs: Mapping[str, Any]) -> Literal["checkpoint"] | None:
    return "checkpoint" if mm_processor_kwargs.get("max_pixels") == "checkpoint" else None
