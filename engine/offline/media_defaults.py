"""What the caller of the offline door wishes for all media of a prompt at once: vLLM's `mm_processor_kwargs`.

What is said nearer to a medium prevails: at the medium itself, then for its prompt, then for all prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

from glimpse.engine.offline.audio_inputs import AudioInput
from glimpse.engine.offline.embedding_inputs import EmbeddingInput, MediumInput
from glimpse.engine.offline.visual_inputs import (
    ImageInput,
    InputError,
    Pictures,
    VideoInput,
    known_fields,
    parse_number,
)
from glimpse.media.processing.video_options import VideoOptions, find_invalid_option
from glimpse.media.sources.source import CachedSource, FrameSources

_NAMES = ("min_pixels", "max_pixels", "fps", "num_frames")


def parse_wishes(kwargs: Mapping[str, Any] | None, path: str) -> VideoOptions:
    """Some of a clip's options, of which the bounds are of pictures too.

    Raises:
        InputError: something else than these, or they are out of range or contradict each other.
    """
    given = known_fields(kwargs or {}, path, known=_NAMES)
    wishes = VideoOptions(**{name: parse_number(value, name, path) for name, value in given.items()})
    _check(wishes, path, of_frames=False)
    return wishes


def with_wishes(media: Sequence[MediumInput], wishes: VideoOptions, path: str) -> tuple[MediumInput, ...]:
    """The media with the wishes where they have none of their own.

    Raises:
        InputError: the two contradict each other; `path` is that of the wishes.
    """
    return tuple(_with(medium, wishes, path) for medium in media)


def _with(medium: MediumInput, wishes: VideoOptions, path: str) -> MediumInput:
    match medium:
        case ImageInput():
            own = VideoOptions(min_pixels=medium.min_pixels, max_pixels=medium.max_pixels)
            bounds = _bounded(own, wishes)
            _check(bounds, path, of_frames=True)
            return replace(medium, min_pixels=bounds.min_pixels, max_pixels=bounds.max_pixels)
        case VideoInput():
            options = _bounded(medium.options, wishes)
            if options.fps is None and options.num_frames is None:
                options = replace(options, fps=wishes.fps, num_frames=wishes.num_frames)
            if not isinstance(medium.clip, CachedSource):  # what that is made of is known where it is kept
                _check(options, path, of_frames=isinstance(medium.clip, FrameSources | Pictures))
            return replace(medium, options=options)
        case AudioInput() | EmbeddingInput():  # of which there is nothing to wish
            return medium
        case _:
            assert_never(medium)


def _bounded(options: VideoOptions, wishes: VideoOptions) -> VideoOptions:
    return replace(
        options,
        min_pixels=wishes.min_pixels if options.min_pixels is None else options.min_pixels,
        max_pixels=wishes.max_pixels if options.max_pixels is None else options.max_pixels,
    )


def _check(options: VideoOptions, path: str, *, of_frames: bool) -> None:
    wrong = find_invalid_option(options, of_frames=of_frames)
    if wrong is not None:
        raise InputError(f"{path}.{wrong.name}", wrong.message)
