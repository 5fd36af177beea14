"""The checkpoint's chat template renders the expected text, in the engine and in transformers."""

import json
from typing import Any

import pytest
from transformers import utils

from glimpse.engine.checkpoint.text.template import ChatTemplate
from models.training.mix import CHAT_TEMPLATE

render_jinja_template = utils.chat_template_utils.render_jinja_template

SOURCE = CHAT_TEMPLATE.read_text(encoding="utf-8")
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"
FUNCTION = {"name": "save", "description": "Saves.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"type": "function", "function": {"name": "save", "arguments": {"text": "é"}}}
CALL_TEXT = '<tool_call>\n{"name": "save", "arguments": {"text": "é"}}\n</tool_call>'
TOOLS_TEXT = (
    f"Tools:\n<tools>\n{json.dumps(FUNCTION)}\n</tools>\n"
    'Call one with <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
)


def user(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


HELLO = user(text("Hello"))
HELLO_TEXT = "<|im_start|>user\nHello<|im_end|>\n"
START = "<|im_start|>assistant\n"

CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None, str]] = [
    ([{"role": "user", "content": "Hello"}], None, HELLO_TEXT + START),
    ([HELLO], None, HELLO_TEXT + START),
    ([HELLO], [], HELLO_TEXT + START),
    (
        [user({"type": "image"}, {"type": "video"}, text("What is it?"))],
        None,
        f"<|im_start|>user\n{IMAGE}{VIDEO}What is it?<|im_end|>\n{START}",
    ),
    (
        [{"role": "system", "content": "Be brief."}, HELLO],
        None,
        f"<|im_start|>system\nBe brief.<|im_end|>\n{HELLO_TEXT}{START}",
    ),
    (
        [{"role": "system", "content": [text("Be brief.")]}, HELLO],
        None,
        f"<|im_start|>system\nBe brief.<|im_end|>\n{HELLO_TEXT}{START}",
    ),
    ([HELLO], [TOOL], f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n{HELLO_TEXT}{START}"),
    ([HELLO], [FUNCTION], f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n{HELLO_TEXT}{START}"),
    (
        [{"role": "system", "content": "Be brief."}, HELLO],
        [TOOL],
        f"<|im_start|>system\nBe brief.\n{TOOLS_TEXT}<|im_end|>\n{HELLO_TEXT}{START}",
    ),
    (
        [HELLO, {"role": "assistant", "content": "Hi."}, HELLO],
        None,
        f"{HELLO_TEXT}<|im_start|>assistant\nHi.<|im_end|>\n{HELLO_TEXT}{START}",
    ),
    (
        [HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        None,
        f"{HELLO_TEXT}<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n{START}",
    ),
    (
        [HELLO, {"role": "assistant", "content": [], "tool_calls": [CALL]}],
        None,
        f"{HELLO_TEXT}<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n{START}",
    ),
    (
        [HELLO, {"role": "assistant", "content": "Yes.", "tool_calls": [CALL, CALL]}],
        None,
        f"{HELLO_TEXT}<|im_start|>assistant\nYes.\n{CALL_TEXT}\n{CALL_TEXT}<|im_end|>\n{START}",
    ),
    (
        [HELLO, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "ok"}],
        None,
        f"{HELLO_TEXT}<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"
        f"<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n{START}",
    ),
    (
        [HELLO, {"role": "tool", "content": [text("one")]}, {"role": "tool", "content": "two"}, HELLO],
        None,
        f"{HELLO_TEXT}<|im_start|>user\n<tool_response>\none\n</tool_response>"
        f"\n<tool_response>\ntwo\n</tool_response><|im_end|>\n{HELLO_TEXT}{START}",
    ),
]


@pytest.mark.parametrize(("messages", "tools", "expected"), CONVERSATIONS)
def test_renders_the_expected_text(messages: list[dict[str, Any]], tools: list[Any] | None, expected: str) -> None:
    assert ChatTemplate(SOURCE, {}).render(messages, tools=tools, add_generation_prompt=True) == expected


@pytest.mark.parametrize(("messages", "tools", "expected"), CONVERSATIONS)
def test_transformers_renders_the_same_text(
    messages: list[dict[str, Any]], tools: list[Any] | None, expected: str
) -> None:
    (rendered,), _ = render_jinja_template([messages], tools=tools, chat_template=SOURCE, add_generation_prompt=True)
    assert rendered == expected


def test_string_arguments_of_a_call_are_rendered_unchanged() -> None:
    call = {"function": {"name": "save", "arguments": '{"text": "é"}'}}
    rendered = ChatTemplate(SOURCE, {}).render(
        [HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}], add_generation_prompt=False
    )
    assert rendered == f"{HELLO_TEXT}<|im_start|>assistant\n{CALL_TEXT}<|im_end|>\n"
