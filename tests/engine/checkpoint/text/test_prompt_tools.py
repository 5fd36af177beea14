"""Tests for prompts with tools, tool calls and continued messages: equal to those of transformers."""

import json
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE
from glimpse.engine.checkpoint.families.token_layout import one_run
from glimpse.engine.checkpoint.text.conversation import (
    ChatMessage,
    MediaSlot,
    TemplateOptions,
    ToolCall,
    ToolDefinition,
)
from glimpse.engine.checkpoint.text.prompt import PromptBuilder
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.conversations import user
from tests.engine.checkpoint.text.reference import reference_messages, reference_tokenizer, reference_tool
from tests.paths import TRAINING_TEMPLATE

RAW = make_tokenizer()
TOKENIZER = Tokenizer(RAW)
REFERENCE = reference_tokenizer(RAW)
IMAGE_PAD = TOKENIZER.encode("<|image_pad|>")[0]
IMAGE = MediaSlot(kind=MediaKind.IMAGE)

HERMES = TRAINING_TEMPLATE.read_text(encoding="utf-8")
"""The embedded checkpoint's chat template."""
LISTING = """\
{%- macro said(message) -%}
{%- if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content %}{{ part.text if part.type == 'text' else '<|image_pad|>' }}{% endfor -%}
{%- endif %}
{%- endmacro -%}
{%- if tools is not none %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{{- call.function | tojson }} {{ call.id }}
{%- if not loop.last %}, {% endif %}
{%- endfor %}]
{%- elif message.role == 'tool' %}
{{- '[RESULT]' + message.tool_call_id }}: {{ said(message) }}
{%- else %}
{{- '<|im_start|>' + message.role }}: {{ said(message) | trim }}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}
{{- mood | default('') }}
"""
"""In the style of Mistral and Llama: all tools in one list, calls with ids, trimmed contents."""

EACH_TEMPLATE = pytest.mark.parametrize(
    "source", [HERMES, LISTING, QWEN3_VL_TEMPLATE], ids=["hermes", "listing", "qwen3_vl"]
)


@cache
def builder(source: str) -> PromptBuilder:
    return PromptBuilder(
        tokenizer=TOKENIZER,
        templates=ChatTemplates(default=ChatTemplate(source, {})),
        placeholder_ids={MediaKind.IMAGE: IMAGE_PAD},
    )


def reference_ids(source: str, messages: list[ChatMessage], tools: list[ToolDefinition], **options: Any) -> list[int]:
    rendered = REFERENCE.apply_chat_template(
        reference_messages(messages),
        tools=[reference_tool(tool) for tool in tools] or None,
        chat_template=source,
        return_dict=False,
        **options,
    )
    return cast("list[int]", rendered)


def assistant(*content: str | MediaSlot, calls: tuple[ToolCall, ...] = ()) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, tool_calls=calls)


def result(call_id: str, *content: str | MediaSlot) -> ChatMessage:
    return ChatMessage(role="tool", content=content, tool_call_id=call_id)


LOOK = ToolDefinition(
    name="look",
    description="Looks <at> \"it\" & says 'é'.",
    parameters='{"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}}',
    strict=True,
)
NOW = ToolDefinition(name="now", description=None, parameters='{"type": "object", "properties": {}}', strict=False)
FIRST = ToolCall(id="c1", name="look", arguments='{"z": "é \\"<b>", "a": [1.50, null, {"k": true}]}')
SECOND = ToolCall(id="c2", name="now", arguments="{}")

CONVERSATIONS: dict[str, list[ChatMessage]] = {
    "a question": [user("What is it?")],
    "a call": [user("What is it?"), assistant(calls=(FIRST,))],
    "a call after a text": [user("What is it?"), assistant("I look.", calls=(FIRST, SECOND))],
    "results": [
        user("What is it?", IMAGE),
        assistant(calls=(FIRST, SECOND)),
        result("c1", "the\nend"),
        result("c2", "Here: ", IMAGE),
        assistant("It is the end."),
        user("And now?"),
    ],
}


@EACH_TEMPLATE
@pytest.mark.parametrize("tools", [[], [LOOK], [LOOK, NOW]], ids=["none", "one", "two"])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_renders_tools_and_tool_calls_like_transformers(
    source: str, tools: list[ToolDefinition], messages: list[ChatMessage]
) -> None:
    slots = [part for message in messages for part in message.content if isinstance(part, MediaSlot)]
    media = [one_run(slot.kind, 1) for slot in slots]
    for begins in (True, False):
        prompt = builder(source).chat(
            messages, media, TemplateOptions(tools=tuple(tools), add_generation_prompt=begins)
        )
        assert prompt.token_ids == reference_ids(source, messages, tools, add_generation_prompt=begins)


def test_image_in_a_tool_result_has_its_tokens_there() -> None:
    messages = [user(IMAGE, "the"), assistant(calls=(FIRST,)), result("c1", IMAGE, "end")]
    media = [one_run(MediaKind.IMAGE, size) for size in (2, 3)]
    prompt = builder(HERMES).chat(messages, media)
    first, second = prompt.starts
    assert prompt.token_ids[first : first + 2] == [IMAGE_PAD] * 2
    assert prompt.token_ids[second : second + 3] == [IMAGE_PAD] * 3
    before = TOKENIZER.decode(prompt.token_ids[first:second])
    assert '"look"' in before
    assert before.endswith("<tool_response>\n")


@pytest.mark.parametrize(
    ("messages", "tools", "message"),
    [
        ([user("Hi")], [NOW], "the model's chat template does not support tools"),
        ([user("Hi"), assistant(calls=(SECOND,))], [], "the model's chat template does not support tool calls"),
    ],
)
def test_refuses_tools_that_the_template_would_leave_out(
    messages: list[ChatMessage], tools: list[ToolDefinition], message: str
) -> None:
    with pytest.raises(TemplateError, match=message):
        builder(QWEN2_VL_TEMPLATE).chat(messages, [], TemplateOptions(tools=tuple(tools)))


# No quotes and backslashes, which templates escape in JSON.
NASTY = st.lists(
    st.sampled_from(["<|im_end|>", "<|image_pad|>", "<|", "im_end|>", "<", "end|>", " ", "the", "é"]), max_size=6
).map("".join)


@EACH_TEMPLATE
@settings(max_examples=25)
@given(text=NASTY)
@example(text="<|im_end|>")
@example(text="the <|im_")
def test_escapes_special_tokens_in_tools_and_tool_calls(source: str, text: str) -> None:
    def ids(text: str) -> list[int]:
        schema = json.dumps({"type": "object", "properties": {text: {"enum": [text, [text]]}}}, ensure_ascii=False)
        tool = ToolDefinition(name="f", description=text, parameters=schema, strict=False)
        call = ToolCall(id=text, name="f", arguments=json.dumps({text: text}, ensure_ascii=False))
        messages = [user(text), assistant(calls=(call,)), result(text, text)]
        return (
            builder(source).chat(messages, [], TemplateOptions(tools=(tool,), template_kwargs={"mood": text})).token_ids
        )

    specials = TOKENIZER.special_ids
    assert [each for each in ids(text) if each in specials] == [each for each in ids("") if each in specials]
    assert f'{{"{text}": "{text}"}}' in TOKENIZER.decode(ids(text))


def test_passes_template_kwargs_to_the_template() -> None:
    prompt = builder(LISTING).chat([user("Hi")], [], TemplateOptions(template_kwargs={"mood": "glad", "unknown": [1]}))
    assert TOKENIZER.decode(prompt.token_ids).endswith("assistant:glad")


def test_template_kwargs_do_not_override_the_conversation() -> None:
    prompt = builder(LISTING).chat(
        [user("Hi")], [], TemplateOptions(template_kwargs={"messages": [], "tools": [], "add_generation_prompt": False})
    )
    assert TOKENIZER.decode(prompt.token_ids) == "user: Hiassistant:"


def test_template_failures_are_template_errors() -> None:
    with pytest.raises(TemplateError, match="the chat template fails on the conversation"):
        builder("{{ mood + 1 }}").chat([user("Hi")], [], TemplateOptions(template_kwargs={"mood": "glad"}))


def test_refuses_values_that_are_nested_too_deeply() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(TemplateError, match="nested too deeply"):
        builder(LISTING).chat([user("Hi")], [], TemplateOptions(template_kwargs={"mood": deep}))


BEGUN = st.lists(st.sampled_from(["the", " ", "\n", "end", "<|im_end|>", "<|im_", "é", "assistant"]), max_size=5)


@EACH_TEMPLATE
@settings(max_examples=25)
@given(begun=BEGUN.map("".join))
@example(begun="end")
@example(begun="the ")
def test_continued_message_is_not_closed(source: str, begun: str) -> None:
    """The end is found even if the text occurs elsewhere too, and white space is kept if the template keeps it."""
    prompt = builder(source).chat([user("end the"), assistant(begun)], [], TemplateOptions(continue_final_message=True))
    shown = TOKENIZER.decode(prompt.token_ids)
    assert shown.endswith(begun.strip() if source is LISTING else begun)
    assert prompt.token_ids[-1] not in TOKENIZER.special_ids


@EACH_TEMPLATE
@pytest.mark.parametrize("content", [("It is",), ("It is ",), (" It", " is\n"), (IMAGE, "It is ")])
def test_continues_messages_like_transformers(source: str, content: tuple[str | MediaSlot, ...]) -> None:
    messages = [user("What?"), assistant(*content)]
    media = [one_run(part.kind, 1) for part in content if isinstance(part, MediaSlot)]
    prompt = builder(source).chat(
        messages, media, TemplateOptions(add_generation_prompt=False, continue_final_message=True)
    )
    assert prompt.token_ids == reference_ids(
        source, messages, [], add_generation_prompt=False, continue_final_message=True
    )


@pytest.mark.parametrize(
    ("source", "last", "message"),
    [
        (HERMES, user("Hi"), "only an assistant message"),
        (HERMES, assistant("Hi", calls=(FIRST,)), "without tool calls"),
        (HERMES, assistant(IMAGE), "a message without text"),
        ("{{ messages[0].content }}", assistant("Hi"), "does not render the last message"),
    ],
)
def test_refuses_messages_that_cannot_be_continued(source: str, last: ChatMessage, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        builder(source).chat([user("Hi"), last], [], TemplateOptions(continue_final_message=True))


THINKING = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
"""
"""In the style of Qwen3."""


def test_templates_get_the_reasoning_of_earlier_messages() -> None:
    messages = [
        ChatMessage(role="user", content=("Why?",)),
        ChatMessage(role="assistant", content=("So.",), reasoning="Let <|im_end|> me"),
        ChatMessage(role="user", content=("And?",)),
    ]
    options = TemplateOptions(template_kwargs={"enable_thinking": False})
    prompt = builder(THINKING).chat(messages, [], options).token_ids
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "So.", "reasoning_content": "Let <|im_end|> me"},
        {"role": "user", "content": "And?"},
    ]
    expected = REFERENCE.apply_chat_template(
        conversation, chat_template=THINKING, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert TOKENIZER.decode(prompt, skip_special=False) == expected
    ends = prompt.count(TOKENIZER.encode("<|im_end|>")[0])
    assert ends == len(messages), "the client's own text is no special token"


PHI4 = """\
{%- for message in messages %}
{%- if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}
{{- '<|im_start|>' + message['role'] + message['content'] + '[TOOL]' + message['tools'] + '[/TOOL]<|im_end|>' }}
{%- else %}
{{- '<|im_start|>' + message['role'] + message['content'] + '<|im_end|>' }}
{%- endif %}
{%- endfor %}
"""
"""In the style of Phi-4-mini: the tools are a member of the system message."""


@pytest.mark.parametrize("system", ["Be brief.", None])
def test_templates_may_read_tools_from_the_system_message(system: str | None) -> None:
    tool = ToolDefinition(name="look", description="<|im_end|>", parameters='{"type": "object"}', strict=False)
    messages = [ChatMessage(role="user", content=("Hi",))]
    messages = messages if system is None else [ChatMessage(role="system", content=(system,)), *messages]
    prompt = builder(PHI4).chat(messages, [], TemplateOptions(tools=(tool,))).token_ids
    conversation: list[dict[str, Any]] = [
        {"role": "system", "content": system or "", "tools": json.dumps([reference_tool(tool)["function"]])},
        {"role": "user", "content": "Hi"},
    ]
    expected = REFERENCE.apply_chat_template(conversation, chat_template=PHI4, tokenize=False)
    assert TOKENIZER.decode(prompt, skip_special=False) == expected
    assert prompt.count(TOKENIZER.encode("<|im_end|>")[0]) == 2
