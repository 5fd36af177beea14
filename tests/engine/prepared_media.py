"""Media as a checkpoint's processing prepares them, and prompts that are laid out with them."""

from collections.abc import Sequence
from pathlib import Path

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.media_inputs import MediaLayouts, media_inputs, read_media
from glimpse.engine.checkpoint.text.prompt import Prompt, PromptBuilder
from glimpse.media.medium import Medium
from glimpse.media.processing.image import Image, prepare_image
from glimpse.media.processing.video import VideoProcessing
from tests.media.images import scene


def image_of(checkpoint: Path, width: int, height: int) -> Image:
    processing = read_media(checkpoint, load_model_config(checkpoint)).images
    assert processing is not None
    return prepare_image(scene(width, height), processing)


def video_processing(checkpoint: Path) -> VideoProcessing:
    processing = read_media(checkpoint, load_model_config(checkpoint)).videos
    assert processing is not None
    return processing


def slots(messages: Sequence[ChatMessage]) -> list[MediaSlot]:
    return [part for message in messages for part in message.content if isinstance(part, MediaSlot)]


def prompt_with_media(
    checkpoint: Path,
    builder: PromptBuilder,
    messages: Sequence[ChatMessage],
    media: Sequence[Medium],
    *,
    placeholder_id: int,
) -> Prompt:
    """Returns the prompt; fails unless the runs of its spans hold exactly the placeholder tokens."""
    layouts = MediaLayouts(load_model_config(checkpoint), builder.tokenizer).of(media)
    prompt = builder.chat(messages, layouts)
    rows = [
        token
        for medium in media_inputs(media, layouts, prompt.starts)
        for _, first, count in medium.span.rows_between(0, len(prompt.token_ids))
        for token in range(first, first + count)
    ]
    assert rows == [index for index, token_id in enumerate(prompt.token_ids) if token_id == placeholder_id]
    return prompt
