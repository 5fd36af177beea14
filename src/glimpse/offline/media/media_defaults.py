"""Parses `mm_processor_kwargs`: options for all media of a prompt, as in vLLM.

An option of a medium itself takes precedence over its prompt's, and that over the one given to `LLM`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glimpse.media.inputs import MediaDefaults, MediumInput, VideoInput, is_made_of_frames, with_defaults
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.offline.fields import InputError, blaming, known_fields, parse_number
from glimpse.offline.media.visual_inputs import INTEGER_OPTIONS

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


def apply_kwargs(media: Sequence[MediumInput], kwargs: Mapping[str, Any] | None, field: str) -> tuple[MediumInput, ...]:
    """Applies the `mm_processor_kwargs` of a prompt, which may be those that `process_vision_info` returns.

    Those have `fps`, a list of the rates at which each video's frames were sampled, and `do_sample_frames`, which is
    False: frames in memory are all used.

    Raises:
        InputError: an option is unknown, out of range, or contradicts a medium.
    """
    options = dict(known_fields(kwargs or {}, field, known=(*_NAMES, "do_sample_frames")))
    videos = [medium for medium in media if isinstance(medium, VideoInput)]
    if (samples := options.pop("do_sample_frames", None)) is not None:
        are_frames = all(is_made_of_frames(video.source) for video in videos)
        if samples is not False or not are_frames:
            got = repr(samples) if are_frames else "it with a video file"
            message = f"expected False, with videos as lists or arrays of frames, got {got}; use fps or num_frames"
            raise InputError(f"{field}.do_sample_frames", message)
    rates = options.get("fps")
    if not isinstance(rates, list | tuple):
        return apply_defaults(media, parse_defaults(options, field), field)
    if len(rates) != len(videos):
        raise InputError(f"{field}.fps", f"expected one for each of {len(videos)} videos, got {len(rates)}")
    of_videos = iter(rates)
    filled: list[MediumInput] = []
    for medium in media:
        own = options | {"fps": next(of_videos) if isinstance(medium, VideoInput) else None}
        filled += apply_defaults([medium], parse_defaults(own, field), field)
    return tuple(filled)


def apply_defaults(media: Sequence[MediumInput], defaults: MediaDefaults, field: str) -> tuple[MediumInput, ...]:
    """Fills in the defaults. Raises InputError if they contradict a medium's own options."""
    with blaming(field):
        return with_defaults(media, defaults)
