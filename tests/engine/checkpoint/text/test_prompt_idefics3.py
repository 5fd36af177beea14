"""Prompts of SmolVLM and Idefics3: the token ids of transformers, for images and videos too."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import TokenizersBackend, models

from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.checkpoint.text.conversation import ChatMessage, TemplateOptions
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.template import ChatTemplate
from glimpse.media.processing.video import Video, make_video
from tests.checkpoints.idefics3 import SPECIAL_TOKENS, TOKEN_IDS, make_idefics3_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, VIDEO, assistant, system, user
from tests.engine.checkpoint.text.reference import reference_messages
from tests.engine.prepared_media import image_of, prompt_with_media, slots, video_processing
from tests.media.images import scene
from tests.oracles.idefics3 import prompt_ids

processing_smolvlm = models.smolvlm.processing_smolvlm

CHECKPOINT = make_idefics3_checkpoint
NUM_TILE_TOKENS = 4
SIZES = {"square": (60, 60), "wide": (200, 31), "tall": (17, 300), "tiny": (2, 1), "one tile": (32, 32)}


CONVERSATIONS = {
    **IMAGE_CONVERSATIONS,
    "several texts": [user("a", "b\n", IMAGE, "\nc")],
}
VIDEO_CONVERSATIONS = {
    "video first": [user(VIDEO, "What happens?")],
    "video last": [user("What happens? ", VIDEO)],
    "video between newlines": [user("\n", VIDEO, "\n\nin")],
    "video and image": [system("Look."), user(IMAGE, "the", VIDEO, "\nthe", VIDEO), assistant("No.")],
}


prompt_of = partial(prompt_with_media, placeholder_id=TOKEN_IDS["<image>"])


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompts_have_the_token_ids_of_transformers(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage]
) -> None:
    sizes = list(SIZES.values())[: len(slots(messages))]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, *size) for size in sizes])
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), [scene(*size) for size in sizes])


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_images_of_any_size_have_the_token_ids_of_transformers(
    checkpoint: Path, builder: PromptBuilder, size: tuple[int, int]
) -> None:
    messages = [user("What is in ", IMAGE, "?")]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, *size)])
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), [scene(*size)])


def video_of(checkpoint: Path, seconds: Sequence[float], duration: float | None) -> Video:
    processing = video_processing(checkpoint)
    frames = [np.asarray(scene(40, 30))] * len(seconds)
    return make_video(frames, len(frames), processing, frame_seconds=tuple(seconds), fps=1.0, duration_seconds=duration)


@pytest.mark.parametrize("messages", VIDEO_CONVERSATIONS.values(), ids=VIDEO_CONVERSATIONS.keys())
def test_prompts_with_videos_have_the_token_ids_of_transformers(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing_smolvlm, "num2words", {1: "one", 3: "three"}.__getitem__)
    videos = [video_of(checkpoint, (0.0, 59.99, 61.0), 62.5), video_of(checkpoint, (3600.0,), None)]
    waiting = iter(videos)
    media = [next(waiting) if slot == VIDEO else image_of(checkpoint, 9, 9) for slot in slots(messages)]
    text = reference_template_text(messages)
    for video in videos:
        text = text.replace("<video>", reference_video_text(video), 1)
    single = "<fake_token_around_image><global-img>" + "<image>" * NUM_TILE_TOKENS + "<fake_token_around_image>"
    if IMAGE in slots(messages):
        text = text.replace("<image>", image_text(checkpoint), 1)
    assert single in text
    assert prompt_of(checkpoint, builder, messages, media).token_ids == builder.tokenizer.encode(text)


def test_an_answer_can_be_continued(builder: PromptBuilder) -> None:
    options = TemplateOptions(continue_final_message=True)
    prompt = builder.chat([user("What is it?"), assistant("It is a <image>")], [], options)
    text = builder.tokenizer.decode(prompt.token_ids, skip_special=False)
    assert text == "<|im_start|>User: What is it?<end_of_utterance>\nAssistant: It is a <image>"
    assert TOKEN_IDS["<image>"] not in prompt.token_ids


def test_files_with_impossible_times_have_a_prompt(checkpoint: Path, builder: PromptBuilder) -> None:
    prompt = prompt_of(checkpoint, builder, [user(VIDEO)], [video_of(checkpoint, (0.0, 1e30), 1e300)])
    text = builder.tokenizer.decode(prompt.token_ids, skip_special=False)
    assert "two frames from a 4 days, 3:59:59 [H:MM:SS] video" in text
    assert "Frame from 5999:59:" in text


def image_text(checkpoint: Path) -> str:
    rows, columns = image_of(checkpoint, 9, 9).grid
    return processing_smolvlm.get_image_prompt_string(
        rows, columns, NUM_TILE_TOKENS, "<fake_token_around_image>", "<image>", "<global-img>"
    )


def reference_template_text(messages: list[ChatMessage]) -> str:
    tokenizer = TokenizersBackend(tokenizer_object=make_tokenizer(SPECIAL_TOKENS))
    text = tokenizer.apply_chat_template(
        reference_messages(messages),
        chat_template=processing_smolvlm.DEFAULT_CHAT_TEMPLATE,
        add_generation_prompt=True,
        tokenize=False,
    )
    assert isinstance(text, str)
    return text


def reference_video_text(video: Video) -> str:
    metadata = SimpleNamespace(fps=1.0, timestamps=video.frame_seconds, duration=video.duration_seconds)
    processor: Any = SimpleNamespace(
        image_seq_len=NUM_TILE_TOKENS,
        image_token="<image>",
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
    )
    inputs = {"pixel_values": np.empty((1, len(video.pixels))), "video_metadata": [metadata]}
    return processing_smolvlm.SmolVLMProcessor.replace_video_token(processor, inputs, 0)


def test_the_fallback_template_renders_as_the_reference() -> None:
    template = FAMILIES["SmolVLMForConditionalGeneration"].fallback_template
    assert template is not None
    for messages in (*CONVERSATIONS.values(), *VIDEO_CONVERSATIONS.values()):
        ours = ChatTemplate(template, {}).render(reference_messages(messages), add_generation_prompt=True)
        assert ours == reference_template_text(messages)
