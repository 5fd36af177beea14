"""Parses `mm_processor_kwargs`: options for all media of a prompt, as in vLLM.

An option of a medium itself takes precedence over its prompt's, and that over the one given to `LLM`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glimpse.engine.offline.fields import blaming, known_fields, parse_number
from glimpse.engine.offline.media.visual_inputs import INTEGER_OPTIONS
from glimpse.media.inputs import MediaDefaults, MediumInput, with_defaults
from glimpse.media.processing.video_options import VideoOptions, check_options

SAMPLING_NAMES = ("fps", "num_frames")
_NAMES = ("min_pixels", "max_pixels", *SAMPLING_NAMES)


def parse_defaults(kwargs: Mapping[str, Any] | None, field: str, *, known: Sequence[str] = _NAMES) -> MediaDefaults:
    """Parses the options, which are those of `known`.

    Raises:
        InputError: an option is unknown or out of range, or two contradict each other.
    """
    options = {
        name: parse_number(value, f"{field}.{name}", integer=name in INTEGER_OPTIONS)
        for name, value in known_fields(kwargs or {}, field, known=known).items()
    }
    with blaming(field):
        check_options(VideoOptions(**options), of_frames=False)
    return MediaDefaults(**options)


def apply_defaults(media: Sequence[MediumInput], defaults: MediaDefaults, field: str) -> tuple[MediumInput, ...]:
    """Fills in the defaults. Raises InputError if they contradict a medium's own options."""
    with blaming(field):
        return with_defaults(media, defaults)
