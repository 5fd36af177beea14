"""Prompts of Ultravox: Llama 3's template reads texts, in which placeholders of audio stand."""

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.tokenizer import make_tokenizer
from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, CHAT_TEMPLATE, SPECIAL_TOKENS, make_ultravox_checkpoint
from tests.engine.checkpoint.text.audio_conversations import AUDIO, CONVERSATIONS, layouts
from tests.engine.checkpoint.text.reference import reference_tokenizer

CHECKPOINT = make_ultravox_checkpoint
RAW = make_tokenizer(SPECIAL_TOKENS)
REFERENCE = reference_tokenizer(RAW, bos_token=SPECIAL_TOKENS[0])


def reference_ids(messages: list[ChatMessage], num_tokens: int) -> list[int]:
    """Encodes the texts around placeholders alone, like the published processor."""
    texts = [
        {
            "role": message.role,
            "content": ("\n" if AUDIO in message.content else "").join(
                part if isinstance(part, str) else "<|audio|>" for part in message.content
            ),
        }
        for message in messages
    ]
    rendered = REFERENCE.apply_chat_template(
        texts, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    first, *others = (RAW.encode(text, add_special_tokens=False).ids for text in cast(str, rendered).split("<|audio|>"))
    return [*first, *(token_id for ids in others for token_id in [AUDIO_TOKEN_ID] * num_tokens + ids)]


@given(messages=CONVERSATIONS, num_tokens=st.integers(1, 4))
def test_prompt_equals_the_reference_processors(
    builder: PromptBuilder, messages: list[ChatMessage], num_tokens: int
) -> None:
    prompt = builder.chat(messages, layouts(messages, num_tokens))
    assert prompt.token_ids == reference_ids(messages, num_tokens)
    assert all(prompt.token_ids[start : start + num_tokens] == [AUDIO_TOKEN_ID] * num_tokens for start in prompt.starts)


def test_a_clients_text_is_no_placeholder(builder: PromptBuilder) -> None:
    message = ChatMessage(role="user", content=(AUDIO, "the <|audio|> is"))
    prompt = builder.chat([message], [one_run(MediaKind.AUDIO, 3)])
    assert prompt.token_ids.count(AUDIO_TOKEN_ID) == 3
    assert "the <|audio|> is" in builder.tokenizer.decode(prompt.token_ids, skip_special=False)


def test_a_template_that_reads_parts_gets_parts(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{%- for message in messages %}{%- for part in message.content %}"
        "{{- part.text if part.type == 'text' else 'a <|audio|> b' }}"
        "{%- endfor %}{%- endfor %}"
    )
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint), str(template))
    prompt = builder.chat([ChatMessage(role="user", content=(AUDIO, "the"))], [one_run(MediaKind.AUDIO, 2)])
    assert builder.tokenizer.decode(prompt.token_ids[1:2]) == "a"
    assert prompt.token_ids.count(AUDIO_TOKEN_ID) == 2


def test_raw_texts_have_a_placeholder_for_each_audio_input(builder: PromptBuilder) -> None:
    prompt = builder.text("the <|audio|> is", [one_run(MediaKind.AUDIO, 2)])
    assert prompt.token_ids.count(AUDIO_TOKEN_ID) == 2
    with pytest.raises(TemplateError, match="one placeholder for each audio input, got 0 for 1"):
        builder.text("the is", [one_run(MediaKind.AUDIO, 2)])
