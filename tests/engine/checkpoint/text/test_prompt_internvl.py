"""Prompts of InternVL: the token ids of transformers, for images and videos too."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.reading.chatml import INTERNVL_TEMPLATE
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.template import ChatTemplate
from glimpse.engine.errors import TemplateError
from glimpse.media.processing.video import Video, make_video
from tests.checkpoints.internvl import CHAT_TEMPLATE, SPECIAL_TOKENS, TOKEN_IDS, make_internvl_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, VIDEO, assistant, system, user
from tests.engine.checkpoint.text.reference import reference_messages
from tests.engine.prepared_media import image_of, prompt_with_media, slots, video_processing
from tests.media.images import scene
from tests.oracles.internvl import prompt_ids

CHECKPOINT = make_internvl_checkpoint
SIZES = {"square": (60, 60), "wide": (400, 31), "tall": (17, 300), "tiny": (2, 1), "one tile": (56, 56)}
FRAMES = (1, 3, 12)


CONVERSATIONS = {
    **IMAGE_CONVERSATIONS,
    "several texts": [user("a", "b\n", IMAGE, "\nc")],
    "video first": [user(VIDEO, "What happens?")],
    "video last": [user("What happens? ", VIDEO)],
    "video between newlines": [user("\n", VIDEO, "\n\nin")],
    "images and videos": [user(VIDEO, IMAGE, "the", VIDEO), assistant("No."), user(IMAGE)],
    "videos in turns": [system("Look."), user("the", VIDEO, "\nthe", VIDEO), assistant("No."), user(VIDEO)],
}


def video_of(checkpoint: Path, num_frames: int) -> Video:
    processing = video_processing(checkpoint)
    return make_video([scene(40, 30)] * num_frames, num_frames, processing, frame_seconds=(), fps=None)


prompt_of = partial(prompt_with_media, placeholder_id=TOKEN_IDS["<IMG_CONTEXT>"])


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompts_have_the_token_ids_of_transformers(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage]
) -> None:
    found = slots(messages)
    sizes = list(SIZES.values())[: found.count(IMAGE)]
    counts = FRAMES[: found.count(VIDEO)]
    waiting = iter(sizes), iter(counts)
    media = [
        image_of(checkpoint, *next(waiting[0])) if slot == IMAGE else video_of(checkpoint, next(waiting[1]))
        for slot in found
    ]
    images = [scene(*size) for size in sizes]
    expected = prompt_ids(checkpoint, reference_messages(messages), images, counts)
    assert prompt_of(checkpoint, builder, messages, media).token_ids == expected


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_images_of_any_size_have_the_token_ids_of_transformers(
    checkpoint: Path, builder: PromptBuilder, size: tuple[int, int]
) -> None:
    messages = [user("What is in ", IMAGE, "?")]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, *size)])
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), [scene(*size)])


def test_tokenizers_may_have_a_token_for_videos(checkpoint: Path, builder: PromptBuilder, tmp_path: Path) -> None:
    """Tokenizers of later conversions have one. The model has no embedding for it."""
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    make_tokenizer((*SPECIAL_TOKENS, "<video>")).save(str(tmp_path / "tokenizer.json"))
    other = load_prompt_builder(tmp_path, load_model_config(tmp_path))
    messages, media = [user("the", VIDEO, "in")], [video_of(checkpoint, 2)]
    ours, expected = (prompt_of(checkpoint, each, messages, media).token_ids for each in (other, builder))
    assert ours == expected


def test_the_fallback_template_renders_as_the_published_one() -> None:
    for messages in CONVERSATIONS.values():
        ours, published = (
            ChatTemplate(source, {}).render(reference_messages(messages), add_generation_prompt=True)
            for source in (INTERNVL_TEMPLATE, CHAT_TEMPLATE)
        )
        assert ours == published


def test_the_fallback_template_refuses_other_media() -> None:
    audio = [{"role": "user", "content": [{"type": "audio"}]}]
    with pytest.raises(TemplateError, match="does not support content of type audio"):
        ChatTemplate(INTERNVL_TEMPLATE, {}).render(audio, add_generation_prompt=True)
