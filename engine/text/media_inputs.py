"""The pictures of a prompt as the engine is told of them. Knows where they stand and what they are, no more."""

from collections.abc import Sequence

from engine.plan import MediaKind
from engine.protocol import MediaInput
from engine.text.prompt import Prompt
from media.image import Image


def image_inputs(images: Sequence[Image], prompt: Prompt) -> list[MediaInput]:
    """Pairs the pictures with the places that the prompt gave them; both are in the order of the pictures."""
    return [
        MediaInput(
            kind=MediaKind.IMAGE,
            start=start,
            num_tokens=image.num_tokens,
            key=image.key,
            grid_thw=image.grid_thw,
            pixels=image.pixels.data.cast("B"),
        )
        for image, start in zip(images, prompt.starts, strict=True)
    ]
