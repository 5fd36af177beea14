"""The kinds of media that a prompt may contain."""

from enum import StrEnum


class MediaKind(StrEnum):
    """A kind of media, by its name in requests and in checkpoints."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
