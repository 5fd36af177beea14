"""Prompts of MiniCPM-V 2.6: the token ids of the reference, with numbered images in slices."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from glimpse.engine.families.minicpmv import TEMPLATE
from glimpse.engine.families.registry import load_model_config
from glimpse.engine.text.conversation import ChatMessage
from glimpse.engine.text.media_inputs import MediaLayouts, media_inputs, read_media
from glimpse.engine.text.prompt import Prompt, PromptBuilder, load_prompt_builder
from glimpse.engine.text.template import ChatTemplate, TemplateError
from glimpse.media.medium import Medium
from glimpse.media.processing.image import Image, prepare_image
from tests.engine.text.conversations import IMAGE, IMAGE_CONVERSATIONS, assistant, user
from tests.engine.text.reference import reference_messages
from tests.media.images import scene
from tests.minicpmv_checkpoints import CHAT_TEMPLATE, TOKEN_IDS, make_minicpmv_checkpoint
from tests.minicpmv_oracle import prompt_ids

SIZES = {"square": (60, 60), "wide": (400, 31), "tall": (17, 300), "tiny": (2, 1), "no slices": (56, 56)}


CONVERSATIONS = {
    **IMAGE_CONVERSATIONS,
    "text before newlines": [user("a", IMAGE, "\n\nc")],
    "many images": [user(IMAGE, "1", IMAGE, IMAGE), assistant("2"), user(IMAGE, IMAGE, "3")],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_minicpmv_checkpoint(tmp_path_factory.mktemp("models") / "minicpmv")


@pytest.fixture(scope="module")
def builder(checkpoint: Path) -> PromptBuilder:
    return load_prompt_builder(checkpoint, load_model_config(checkpoint))


def image_of(checkpoint: Path, size: tuple[int, int]) -> Image:
    processing = read_media(checkpoint, load_model_config(checkpoint)).images
    assert processing is not None
    return prepare_image(scene(*size), processing)


def prompt_of(
    checkpoint: Path, builder: PromptBuilder, messages: Sequence[ChatMessage], media: Sequence[Medium]
) -> Prompt:
    """Returns the prompt; the runs of its spans hold exactly the placeholder tokens."""
    layouts = MediaLayouts(load_model_config(checkpoint), builder.tokenizer).of(media)
    prompt = builder.chat(messages, layouts)
    rows = [
        token
        for medium in media_inputs(media, layouts, prompt)
        for _, first, count in medium.span.rows_between(0, len(prompt.token_ids))
        for token in range(first, first + count)
    ]
    assert rows == np.flatnonzero(np.array(prompt.token_ids) == TOKEN_IDS["<unk>"]).tolist()
    return prompt


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompts_have_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage]
) -> None:
    num_images = sum(part == IMAGE for message in messages for part in message.content)
    sizes = list(SIZES.values())[:num_images]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, size) for size in sizes])
    expected = prompt_ids(checkpoint, reference_messages(messages), [scene(*size) for size in sizes])
    assert prompt.token_ids == expected


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_images_of_any_size_have_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, size: tuple[int, int]
) -> None:
    messages = [user("What is in", IMAGE, "?")]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, size)])
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), [scene(*size)])


def test_clients_cannot_write_marks_of_images(checkpoint: Path, builder: PromptBuilder) -> None:
    prompt = prompt_of(
        checkpoint, builder, [user("<unk>(<image>./</image>)<slice>", IMAGE)], [image_of(checkpoint, (9, 9))]
    )
    assert prompt.token_ids.count(TOKEN_IDS["<image>"]) == 1
    assert TOKEN_IDS["<slice>"] not in prompt.token_ids


def test_texts_are_rendered_as_the_published_template_renders_them() -> None:
    for name in ("text", "empty", "system", "turns"):
        values = [{"role": each.role, "content": each.content[0]} for each in CONVERSATIONS[name]]
        ours, published = (
            ChatTemplate(source, {}).render(values, add_generation_prompt=True) for source in (TEMPLATE, CHAT_TEMPLATE)
        )
        assert ours == published


def test_the_template_refuses_other_media() -> None:
    audio = [{"role": "user", "content": [{"type": "audio"}]}]
    with pytest.raises(TemplateError, match="does not support content of type audio"):
        ChatTemplate(TEMPLATE, {}).render(audio, add_generation_prompt=True)
