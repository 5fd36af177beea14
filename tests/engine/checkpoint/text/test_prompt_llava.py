"""Prompts of LLaVA-1.5, LLaVA-NeXT and LLaVA-OneVision: equal to the reference processors'."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from transformers import AutoTokenizer, CLIPImageProcessorPil, LlavaNextProcessor, LlavaProcessor

from glimpse.engine.checkpoint.families.llava.llava import VICUNA_TEMPLATE
from glimpse.engine.checkpoint.families.llava.llava_onevision import TEMPLATE
from glimpse.engine.checkpoint.families.registry import family_of as family_spec
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.model_config.encoders import LlavaOneVisionConfig
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.llava import (
    CHAT_TEMPLATE,
    NEXT_TEMPLATE,
    ONEVISION_TEMPLATE,
    make_llava_checkpoint,
    make_next_checkpoint,
    make_onevision_checkpoint,
)
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer
from tests.oracles.llava import next_processor

IMAGE, VIDEO = MediaSlot(kind=MediaKind.IMAGE), MediaSlot(kind=MediaKind.VIDEO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A checkpoint's tokenizer and templates."""

    library: LibraryTokenizer
    published: str
    builders: tuple[PromptBuilder, ...]
    """With the checkpoint's template, and with the fallback if there is one."""


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    first = make_llava_checkpoint(tmp_path_factory.mktemp("llava"))
    second = make_onevision_checkpoint(tmp_path_factory.mktemp("onevision"))
    return {
        "llava": family_of(first, CHAT_TEMPLATE, VICUNA_TEMPLATE),
        "onevision": family_of(second, ONEVISION_TEMPLATE, TEMPLATE),
        "next": family_without_fallback(make_next_checkpoint(tmp_path_factory.mktemp("next"))),
    }


def family_without_fallback(path: Path) -> Family:
    own = load_prompt_builder(path, load_model_config(path))
    library = LibraryTokenizer.from_file(str(path / "tokenizer.json"))
    return Family(library=library, published=own.templates.default.source, builders=(own,))


def family_of(path: Path, published: str, fallback: str) -> Family:
    config = load_model_config(path)
    own = load_prompt_builder(path, config)
    (path / "chat_template.json").unlink()
    without = load_prompt_builder(path, config)
    assert (own.templates.default.source, without.templates.default.source) == (published, fallback)
    library = LibraryTokenizer.from_file(str(path / "tokenizer.json"))
    return Family(library=library, published=published, builders=(own, without))


def conversations(*slots: MediaSlot) -> st.SearchStrategy[list[ChatMessage]]:
    content = st.lists(
        st.one_of(st.text("the an\n", min_size=1, max_size=12), st.sampled_from(slots)), min_size=1, max_size=5
    )
    roles = st.sampled_from(["system", "user", "assistant"])
    message = st.builds(ChatMessage, role=roles, content=content.map(tuple))
    return st.lists(message, min_size=1, max_size=4)


def assert_equal(family: Family, messages: list[ChatMessage], num_tokens: int) -> None:
    rendered = reference_tokenizer(family.library).apply_chat_template(
        reference_messages(messages), chat_template=family.published, tokenize=False, add_generation_prompt=True
    )
    expanded = str(rendered)
    for marker in ("<image>", "<video>"):
        expanded = expanded.replace(marker, marker * num_tokens)  # as the processors do
    slots = [part for message in messages for part in message.content if isinstance(part, MediaSlot)]
    for builder in family.builders:
        prompt = builder.chat(messages, [one_run(slot.kind, num_tokens) for slot in slots])
        assert prompt.token_ids == family.library.encode(expanded).ids


@given(messages=conversations(IMAGE), num_tokens=st.integers(1, 4))
def test_prompts_of_llava_equal_the_reference_processors(
    families: dict[str, Family], messages: list[ChatMessage], num_tokens: int
) -> None:
    assert_equal(families["llava"], messages, num_tokens)


@given(messages=conversations(IMAGE, VIDEO), num_tokens=st.integers(1, 4))
def test_prompts_of_onevision_equal_the_reference_processors(
    families: dict[str, Family], messages: list[ChatMessage], num_tokens: int
) -> None:
    assert_equal(families["onevision"], messages, num_tokens)


TEXTS = st.text("the an\n", min_size=1, max_size=12)


def one_text(role: str) -> st.SearchStrategy[ChatMessage]:
    """A message of which the template of LLaVA-NeXT takes one text."""
    return TEXTS.map(lambda text: ChatMessage(role=role, content=(text,)))


USER = st.lists(st.one_of(TEXTS, st.just(IMAGE)), min_size=1, max_size=5).map(
    lambda content: ChatMessage(role="user", content=tuple(content))
)


@given(
    messages=st.lists(st.one_of(USER, one_text("system"), one_text("assistant")), min_size=1, max_size=5),
    num_tokens=st.integers(1, 4),
)
def test_prompts_of_next_equal_the_reference_processors(
    families: dict[str, Family], messages: list[ChatMessage], num_tokens: int
) -> None:
    assert families["next"].published == NEXT_TEMPLATE
    assert_equal(families["next"], messages, num_tokens)


@pytest.mark.parametrize("sizes", [[(20, 31)], [(40, 290), (301, 70)], [(56, 56), (113, 111), (1, 9)]])
def test_tiles_take_as_many_tokens_as_in_the_whole_reference_processor_of_next(
    tmp_path: Path, sizes: list[tuple[int, int]]
) -> None:
    path = make_next_checkpoint(tmp_path)
    images = [PIL.Image.fromarray(np.zeros((*size, 3), np.uint8)) for size in sizes]
    processor: Any = LlavaNextProcessor(
        image_processor=next_processor(path),
        tokenizer=AutoTokenizer.from_pretrained(path),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=NEXT_TEMPLATE,
    )
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": "the an"}]
    expected = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=True, return_dict=True)
    config = load_model_config(path)
    processing = family_spec(config).read_media(path, config).images
    assert processing is not None
    encoder = config.encoder
    assert isinstance(encoder, LlavaOneVisionConfig)
    sizing = processing.sizing.among_others()
    layouts = [one_run(MediaKind.IMAGE, encoder.num_image_tokens(sizing.plan(*size).grid)) for size in sizes]
    message = ChatMessage(role="user", content=(*[IMAGE] * len(images), "the an"))
    assert load_prompt_builder(path, config).chat([message], layouts).token_ids == expected["input_ids"][0]


def test_a_prompt_equals_the_whole_reference_processors(tmp_path: Path) -> None:
    path = make_llava_checkpoint(tmp_path)
    image = PIL.Image.fromarray(np.zeros((40, 60, 3), np.uint8))
    processor: Any = LlavaProcessor(
        image_processor=CLIPImageProcessorPil.from_pretrained(path),
        tokenizer=AutoTokenizer.from_pretrained(path),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "the an"}, {"type": "image", "image": image}]},
        {"role": "assistant", "content": [{"type": "text", "text": "an"}]},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "in"}]},
    ]
    expected = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    ours = load_prompt_builder(path, load_model_config(path)).chat(
        [
            ChatMessage(role="user", content=("the an", IMAGE)),
            ChatMessage(role="assistant", content=("an",)),
            ChatMessage(role="user", content=(IMAGE, "in")),
        ],
        [one_run(MediaKind.IMAGE, 16)] * 2,
    )
    assert ours.token_ids == expected["input_ids"][0]


def test_fallback_templates_refuse_other_media(families: dict[str, Family]) -> None:
    audio = ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.AUDIO),))
    for name in ("llava", "onevision"):
        with pytest.raises(TemplateError, match="does not support content of type audio"):
            families[name].builders[1].chat([audio], [])
    video = ChatMessage(role="user", content=(VIDEO,))
    with pytest.raises(TemplateError, match="does not support content of type video"):
        families["llava"].builders[1].chat([video], [])
