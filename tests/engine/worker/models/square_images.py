"""Tests of families whose images are a grid of squares of 2 by 2 patches, each one token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, prepare_image
from tests.media.images import scene

SIDES = st.integers(1, 4000) | st.integers(1, 40)


def sizes_are_those_of(processor: Any, *, most_elongated: int) -> Callable[..., None]:
    """Returns a test that images have as many patches as a reference gives them, up to a ratio of their sides."""

    @given(height=SIDES, width=SIDES)
    def test(processing: ImageProcessing, checkpoint: Path, height: int, width: int) -> None:
        if max(height, width) > most_elongated * min(height, width):
            return
        grid = processing.sizing.plan(height, width).grid
        reference = processor.from_pretrained(checkpoint)
        assert grid[1] * grid[2] == reference.get_number_of_image_patches(height, width)

    return test


def prompt_of_an_image(before: str, placeholder: int, text: str, after: str) -> Callable[..., None]:
    """Returns a test that a message of an image and a text has a token for each square, between these texts."""

    def test(checkpoint: Path, processing: ImageProcessing) -> None:
        config, tokenizer = load_model_config(checkpoint), load_tokenizer(checkpoint)
        image = prepare_image(scene(90, 140, 1), processing)
        layout = family_of(config).layout(image, LayoutContext(model=config, encode=tokenizer.encode))
        message = ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.IMAGE), text))
        found = load_prompt_builder(checkpoint, config).chat([message], [layout]).token_ids
        squares = [placeholder] * (image.grid[1] * image.grid[2] // 4)
        assert found == [*tokenizer.encode(before), *squares, *tokenizer.encode(after)]

    return test
