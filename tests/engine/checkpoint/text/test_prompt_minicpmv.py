"""Prompts of MiniCPM-V: the token ids of the reference, with numbered images in slices."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.video import make_video
from tests.checkpoints.files import write_json
from tests.checkpoints.llava import save_tokenizer
from tests.checkpoints.minicpmv import SPECIAL_TOKENS, TOKEN_IDS, VERSIONS, Version, make_minicpmv_checkpoint
from tests.engine.checkpoint.text.conversations import IMAGE, IMAGE_CONVERSATIONS, VIDEO, assistant, system, user
from tests.engine.checkpoint.text.reference import reference_messages
from tests.engine.prepared_media import image_of, prompt_with_media, video_processing
from tests.media.images import scene
from tests.oracles.minicpmv import prompt_ids, read_document, video_prompt_ids

CHECKPOINT = make_minicpmv_checkpoint
SIZES = {"square": (60, 60), "wide": (400, 31), "tall": (17, 300), "tiny": (2, 1), "no slices": (56, 56)}


CONVERSATIONS = {
    **IMAGE_CONVERSATIONS,
    "text before newlines": [user("a", IMAGE, "\n\nc")],
    "many images": [user(IMAGE, "1", IMAGE, IMAGE), assistant("2"), user(IMAGE, IMAGE, "3")],
}


prompt_of = partial(prompt_with_media, placeholder_id=TOKEN_IDS["<unk>"])


def assert_has_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage], *, unk: int = TOKEN_IDS["<unk>"]
) -> None:
    num_images = sum(part == IMAGE for message in messages for part in message.content)
    sizes = list(SIZES.values())[:num_images]
    prompt = prompt_of(
        checkpoint, builder, messages, [image_of(checkpoint, *size) for size in sizes], placeholder_id=unk
    )
    expected = prompt_ids(checkpoint, reference_messages(messages), [scene(*size) for size in sizes])
    assert prompt.token_ids == expected


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_prompts_have_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, messages: list[ChatMessage]
) -> None:
    assert_has_the_token_ids_of_the_reference(checkpoint, builder, messages)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_images_of_any_size_have_the_token_ids_of_the_reference(
    checkpoint: Path, builder: PromptBuilder, size: tuple[int, int]
) -> None:
    messages = [user("What is in", IMAGE, "?")]
    prompt = prompt_of(checkpoint, builder, messages, [image_of(checkpoint, *size)])
    assert prompt.token_ids == prompt_ids(checkpoint, reference_messages(messages), [scene(*size)])


def test_clients_cannot_write_marks_of_images(checkpoint: Path, builder: PromptBuilder) -> None:
    prompt = prompt_of(
        checkpoint, builder, [user("<unk>(<image>./</image>)<slice>", IMAGE)], [image_of(checkpoint, 9, 9)]
    )
    assert prompt.token_ids.count(TOKEN_IDS["<image>"]) == 1
    assert TOKEN_IDS["<slice>"] not in prompt.token_ids


@pytest.mark.parametrize("version", ["4.0", "4.5"])
def test_other_versions_have_the_token_ids_of_the_reference(tmp_path: Path, version: Version) -> None:
    path = make_minicpmv_checkpoint(tmp_path, version)
    builder = load_prompt_builder(path, load_model_config(path))
    for messages in CONVERSATIONS.values():
        assert_has_the_token_ids_of_the_reference(path, builder, messages)


def test_marks_in_a_sentencepiece_vocabulary_have_the_token_ids_of_the_reference(tmp_path: Path) -> None:
    path = make_minicpmv_checkpoint(tmp_path, "4.0")
    document = read_document(path / "tokenizer_config.json")
    save_tokenizer(path, [token for token in SPECIAL_TOKENS if token != "<unk>"])
    write_json(path / "tokenizer_config.json", document)
    builder = load_prompt_builder(path, load_model_config(path))
    for messages in (CONVERSATIONS["images"], CONVERSATIONS["image between"]):
        assert_has_the_token_ids_of_the_reference(path, builder, messages, unk=0)


def test_refuses_other_media(builder: PromptBuilder) -> None:
    with pytest.raises(TemplateError):
        builder.chat([user(MediaSlot(kind=MediaKind.AUDIO), "a")], [])


VIDEO_CONVERSATIONS = {
    "video first": [user(VIDEO, "What happens?")],
    "video between": [user("This ", VIDEO, " or that?")],
    "videos": [user(VIDEO, VIDEO, "Do they differ?")],
    "videos in turns": [system("Be brief."), user(VIDEO, "And?"), assistant("A cat."), user(VIDEO)],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("messages", VIDEO_CONVERSATIONS.values(), ids=VIDEO_CONVERSATIONS.keys())
def test_videos_have_the_token_ids_of_the_reference(
    tmp_path: Path, version: Version, messages: list[ChatMessage]
) -> None:
    path = make_minicpmv_checkpoint(tmp_path, version)
    processing = video_processing(path)
    processing = replace(processing, sizing=msgspec.structs.replace(processing.sizing, max_packs=3))
    videos = [
        make_video([scene(50, 40)] * count, count, processing, frame_seconds=tuple(range(count)), fps=1)
        for count in (3, 5)
    ][: sum(part == VIDEO for message in messages for part in message.content)]
    builder = load_prompt_builder(path, load_model_config(path))
    packs = [[1, 1, 1], [2, 2, 1] if version == "4.5" else [1] * 5]
    prompt = prompt_of(path, builder, messages, videos)
    assert prompt.token_ids == video_prompt_ids(path, reference_messages(messages), packs)
