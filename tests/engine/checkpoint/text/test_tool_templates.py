"""Tests for the templates that show tools to Qwen2-VL and Qwen2.5-VL: without tools they are the published ones."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE, QWEN2_VL_TOOL_TEMPLATE
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    MediaSlot,
    TemplateOptions,
    ToolCall,
    ToolDefinition,
)
from glimpse.engine.checkpoint.text.prompt import PromptBuilder, load_prompt_builder
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import FORMATS, find_format
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer())
PLACEHOLDERS = {kind: TOKENIZER.encode(f"<|{kind.value}_pad|>")[0] for kind in (MediaKind.IMAGE, MediaKind.VIDEO)}
IMAGE, VIDEO = MediaSlot(kind=MediaKind.IMAGE), MediaSlot(kind=MediaKind.VIDEO)
LOOK = ToolDefinition(name="look", description="Looks.", parameters='{"type": "object"}', strict=False)


def message(role: str, *content: str | MediaSlot, **members: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, **members)


USER, SYSTEM = message("user", "Hi"), message("system", "Be brief.")
ANSWER = message("assistant", "Hello <|im_end|> there")
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [message("developer", "Be brief."), USER],
    [USER, ANSWER, USER],
    [SYSTEM, USER, ANSWER, USER, ANSWER],
    [message("user", IMAGE, "What is this?")],
    [message("user", "What is this?", IMAGE, "And this?", VIDEO)],
    [SYSTEM, message("user", VIDEO, IMAGE), ANSWER, message("user", IMAGE, VIDEO, "the")],
    [message("user", "")],
    [message("user", "the\n", "\n other ")],
    [message("system", "a", "b"), message("user", IMAGE)],
    [ANSWER],
    [USER, SYSTEM, USER],
]


@cache
def builder(source: str, *, with_tools: bool = False) -> PromptBuilder:
    return PromptBuilder(
        tokenizer=TOKENIZER,
        templates=ChatTemplates(
            default=ChatTemplate(source, {}), tools=ChatTemplate(QWEN2_VL_TOOL_TEMPLATE, {}) if with_tools else None
        ),
        placeholder_ids=PLACEHOLDERS,
    )


def token_ids(prompts: PromptBuilder, messages: list[ChatMessage], options: TemplateOptions) -> list[int]:
    slots = [part for each in messages for part in each.content if isinstance(part, MediaSlot)]
    return prompts.chat(messages, [one_run(slot.kind, 2) for slot in slots], options).token_ids


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_prompts_without_tools_are_those_of_the_published_template(messages: list[ChatMessage]) -> None:
    published, own = builder(QWEN2_VL_TEMPLATE), builder(QWEN2_VL_TOOL_TEMPLATE)
    both = builder(QWEN2_VL_TEMPLATE, with_tools=True)
    for begins in (True, False):
        options = TemplateOptions(add_generation_prompt=begins)
        expected = token_ids(published, messages, options)
        assert token_ids(own, messages, options) == token_ids(both, messages, options) == expected
    if messages[-1].role == "assistant":
        options = TemplateOptions(add_generation_prompt=False, continue_final_message=True)
        assert token_ids(own, messages, options) == token_ids(published, messages, options)


def published_with_numbers(messages: list[ChatMessage]) -> str:
    """What the published templates of Qwen2-VL and Qwen2.5-VL render with `add_vision_id`."""
    rendered = "" if messages[0].role == "system" else "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    counts = {MediaKind.IMAGE: 0, MediaKind.VIDEO: 0}
    for each in messages:
        rendered += f"<|im_start|>{each.role}\n"
        for part in each.content:
            if isinstance(part, str):
                rendered += part
                continue
            counts[part.kind] += 1
            name = "Picture" if part.kind is MediaKind.IMAGE else "Video"
            rendered += f"{name} {counts[part.kind]}: <|vision_start|><|{part.kind.value}_pad|><|vision_end|>"
        rendered += "<|im_end|>\n"
    return f"{rendered}<|im_start|>assistant\n"


@pytest.mark.parametrize("messages", [each for each in CONVERSATIONS if each[0].role != "developer"])
def test_media_are_numbered_as_by_the_published_template(messages: list[ChatMessage]) -> None:
    plain = [replace(each, content=("Hello there",)) if each is ANSWER else each for each in messages]
    options = TemplateOptions(template_kwargs={"add_vision_id": True})
    slots = [part for each in plain for part in each.content if isinstance(part, MediaSlot)]
    prompt = builder(QWEN2_VL_TOOL_TEMPLATE).chat(plain, [one_run(slot.kind, 1) for slot in slots], options)
    assert TOKENIZER.decode(prompt.token_ids, skip_special=False) == published_with_numbers(plain)


CALL = ToolCall(id="c1", name="look", arguments='{"at": "the"}')
RESULTS = [
    USER,
    message("assistant", "So.", tool_calls=(CALL, CALL)),
    message("tool", "A tree.", IMAGE, tool_call_id="c1"),
    message("tool", "None.", tool_call_id="c1"),
]
TURNS = """\
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
So.
<tool_call>
{"name": "look", "arguments": {"at": "the"}}
</tool_call>
<tool_call>
{"name": "look", "arguments": {"at": "the"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
A tree.<|vision_start|><|image_pad|><|image_pad|><|vision_end|>
</tool_response>
<tool_response>
None.
</tool_response><|im_end|>
<|im_start|>assistant
"""


def test_tools_calls_and_results_are_shown_in_the_format_of_qwen2_5() -> None:
    prompts = builder(QWEN2_VL_TEMPLATE, with_tools=True)
    shown = TOKENIZER.decode(token_ids(prompts, RESULTS, TemplateOptions(tools=(LOOK,))), skip_special=False)
    head, _, turns = shown.partition("<|im_end|>\n")
    assert turns == TURNS
    assert head.startswith("<|im_start|>system\nYou are a helpful assistant.\n\n# Tools\n\n")
    (line,) = [line for line in head.splitlines() if line.startswith('{"type": "function"')]
    assert json.loads(line)["function"] == {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    own_system = token_ids(prompts, [SYSTEM, *RESULTS], TemplateOptions(tools=(LOOK,)))
    assert TOKENIZER.decode(own_system, skip_special=False).startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")


def test_earlier_calls_are_shown_even_if_the_request_has_no_tools() -> None:
    prompts = builder(QWEN2_VL_TEMPLATE, with_tools=True)
    shown = TOKENIZER.decode(token_ids(prompts, RESULTS, TemplateOptions()), skip_special=False)
    assert shown.partition("<|im_end|>\n")[2] == TURNS
    with pytest.raises(TemplateError, match="does not support tool calls"):
        token_ids(builder(QWEN2_VL_TEMPLATE), RESULTS, TemplateOptions())


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose template ignores tools."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / request.param, family=request.param)


def test_checkpoints_whose_template_ignores_tools_get_one_that_shows_them(checkpoint: Path, tmp_path: Path) -> None:
    model = load_model_config(checkpoint)
    prompts = load_prompt_builder(checkpoint, model)
    assert prompts.templates.tools is not None
    assert find_format(prompts.templates.with_tools.source) is FORMATS["hermes"]
    assert find_format(prompts.templates.default.source) is None
    assert load_prompt_builder(checkpoint, model, tool_template="off").templates.tools is None
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    assert load_prompt_builder(checkpoint, model, str(own)).templates.tools is None
    (checkpoint / "chat_template.jinja").write_text("{{ tools }}{{ messages[0].content }}")
    assert load_prompt_builder(checkpoint, model).templates.tools is None
