"""The kinds of media that a request may contain."""

from collections.abc import Mapping
from enum import StrEnum
from typing import cast


class MediaKind(StrEnum):
    """A kind of media, by its name in requests and in checkpoints."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    DOCUMENT = "document"
    """In the prompt its pages are images, or texts."""


def parse_limit(limit: object) -> int | None:
    """Returns the most media of a kind; None if it is no number. vLLM's `{"count": 2, "width": 512}` counts as 2.

    Its sizes only say for which media it sets memory aside. Here memory is set aside for any.
    """
    if isinstance(limit, Mapping):
        limit = cast("Mapping[str, object]", limit).get("count")
    return limit if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0 else None
