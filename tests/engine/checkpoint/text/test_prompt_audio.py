"""Tests for prompts with audio: equal to the reference processor's."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2AudioProcessor

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_AUDIO_TEMPLATE
from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.qwen2_audio import CHAT_TEMPLATE, SPECIAL_TOKENS, TOKEN_IDS
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.audio_conversations import AUDIO, CONVERSATIONS, layouts
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer

RAW = make_tokenizer(SPECIAL_TOKENS)
REFERENCE = reference_tokenizer(RAW)
PUBLISHED = Qwen2AudioProcessor.default_chat_template.fget(None)


def builder(source: str) -> PromptBuilder:
    return PromptBuilder(
        tokenizer=Tokenizer(RAW),
        templates=ChatTemplates(default=ChatTemplate(source, {})),
        placeholder_ids={MediaKind.AUDIO: TOKEN_IDS["<|AUDIO|>"]},
    )


@given(messages=CONVERSATIONS, num_tokens=st.integers(1, 4), source=st.sampled_from([PUBLISHED, QWEN2_AUDIO_TEMPLATE]))
def test_prompt_equals_the_reference_processors(messages: list[ChatMessage], num_tokens: int, source: str) -> None:
    rendered = REFERENCE.apply_chat_template(
        reference_messages(messages), chat_template=PUBLISHED, tokenize=False, add_generation_prompt=True
    )
    expanded = cast(str, rendered).replace("<|AUDIO|>", "<|AUDIO|>" * num_tokens)  # as the processor does
    prompt = builder(source).chat(messages, layouts(messages, num_tokens))
    assert prompt.token_ids == RAW.encode(expanded, add_special_tokens=False).ids


def test_template_may_recognize_audio_by_its_url_member() -> None:
    messages = [ChatMessage(role="user", content=(AUDIO, "the", AUDIO))]
    prompt = builder(CHAT_TEMPLATE).chat(messages, layouts(messages, 2))
    assert Tokenizer(RAW).split(RAW.decode(prompt.token_ids, skip_special_tokens=False))[2:8] == [
        "user\nAudio 1: ",
        TOKEN_IDS["<|audio_bos|>"],
        "",
        TOKEN_IDS["<|AUDIO|>"],
        "",
        TOKEN_IDS["<|AUDIO|>"],
    ]


def test_fallback_template_equals_the_published_one() -> None:
    assert FAMILIES["Qwen2AudioForConditionalGeneration"].fallback_template == QWEN2_AUDIO_TEMPLATE


def test_refuses_images_for_an_audio_model() -> None:
    messages = [ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.IMAGE),))]
    with pytest.raises(TemplateError, match="does not support content of type image"):
        builder(QWEN2_AUDIO_TEMPLATE).chat(messages, layouts(messages, 1))
