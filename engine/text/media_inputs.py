"""The media of a prompt as the engine is told of them. Knows where they stand and what they are, no more."""

from collections.abc import Sequence

from engine.plan import MediaKind
from engine.protocol import MediaInput
from engine.text.prompt import Prompt, PromptMedia
from media.clip import Clip
from media.image import Image

Medium = Image | Clip


def kind_of(medium: Medium) -> MediaKind:
    """What stands for it in a prompt."""
    return MediaKind.VIDEO if isinstance(medium, Clip) else MediaKind.IMAGE


def prompt_media(media: Sequence[Medium]) -> list[PromptMedia]:
    """What a prompt must know of its media."""
    return [PromptMedia(kind=kind_of(medium), num_tokens=medium.num_tokens) for medium in media]


def media_inputs(media: Sequence[Medium], prompt: Prompt) -> list[MediaInput]:
    """Pairs the media with the places that the prompt gave them; both are in the order of the media."""
    return [
        MediaInput(
            kind=kind_of(medium),
            start=start,
            num_tokens=medium.num_tokens,
            key=medium.key,
            grid_thw=medium.grid_thw,
            pixels=medium.pixels.data.cast("B"),
        )
        for medium, start in zip(media, prompt.starts, strict=True)
    ]
