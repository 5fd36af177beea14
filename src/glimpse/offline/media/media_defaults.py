"""Reads `mm_processor_kwargs` and `media_io_kwargs`: options for all media of a prompt, as in vLLM.

An option of a medium itself takes precedence over its prompt's, and that over the one given to `LLM`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from glimpse.media.inputs import MediaDefaults, MediumInput, VideoInput, is_made_of_frames
from glimpse.offline.documents import parse
from glimpse.offline.fields import InputError
from glimpse.server.call.context import CallContext
from glimpse.server.parse import media_defaults
from glimpse.server.parse.chat import check_bounds
from glimpse.v1.embedding_pb2 import CreateEmbeddingsRequest


def parse_defaults(io: object, processor: object) -> MediaDefaults:
    """Parses `media_io_kwargs` and `mm_processor_kwargs`. Raises InputError."""
    document = {"media_io_kwargs": io, "mm_processor_kwargs": processor}
    return parse(document, CreateEmbeddingsRequest, _parse_defaults, call="LLM()")


def _parse_defaults(request: CreateEmbeddingsRequest, _: CallContext) -> MediaDefaults:
    check_bounds(request)
    return media_defaults.parse_defaults(request.media_io_options, request.media_processor_options)


def split_kwargs(kwargs: object, videos: Sequence[int], field: str) -> tuple[object, dict[int, object], object]:
    """Splits the `mm_processor_kwargs` of a prompt, which may be those that `process_vision_info` returns.

    Those have `fps`, a list of the rates at which each video's frames were sampled, and `do_sample_frames`, which is
    False: frames in memory are all used.

    Args:
        videos: indices of the prompt's media that are videos.

    Returns:
        The options of a request, the rate of each of `videos` that has one, and `do_sample_frames`.

    Raises:
        InputError: there are more rates than videos, or fewer.
    """
    if not isinstance(kwargs, Mapping):
        return kwargs, {}, None
    options = dict(cast("Mapping[str, object]", kwargs))
    samples, rates = options.pop("do_sample_frames", None), options.get("fps")
    if not isinstance(rates, list | tuple):
        return options, {}, samples
    if len(rates) != len(videos):
        raise InputError(f"{field}.fps", f"expected one for each of {len(videos)} videos, got {len(rates)}")
    del options["fps"]
    return options, dict(zip(videos, rates, strict=True)), samples


def check_sampling(samples: object, media: Iterable[MediumInput], field: str) -> None:
    """Raises InputError if `do_sample_frames` asks for something. `media` are those of the prompt."""
    are_frames = all(is_made_of_frames(medium.source) for medium in media if isinstance(medium, VideoInput))
    if samples is not None and (samples is not False or not are_frames):
        got = repr(samples) if are_frames else "it with a video file"
        message = f"expected False, with videos as lists or arrays of frames, got {got}; use fps or num_frames"
        raise InputError(f"{field}.do_sample_frames", message)
