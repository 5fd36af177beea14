"""Tests for chat templates: loading, rendering like transformers, and errors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import QWEN2_VL
from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE
from glimpse.engine.checkpoint.families.text import LLAMA
from glimpse.engine.checkpoint.text.conversation import ChatMessage, ToolDefinition
from glimpse.engine.checkpoint.text.template import ChatTemplate, load_chat_templates
from glimpse.engine.errors import CheckpointError, TemplateError
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.reference import reference_tokenizer

SPECIAL_TOKENS = {"eos_token": "<|im_end|>", "bos_token": "<|endoftext|>"}

WITH_EVERYTHING = """\
{{ bos_token }}{% set count = namespace(value=0) %}
{% for message in messages %}
    {% if message.role == 'ignored' %}
        {% continue %}
    {% endif %}
    {% set count.value = count.value + 1 %}
{{ count.value }} {{ message['role'] }}: {{ message | tojson }} {{ message | tojson(indent=2, sort_keys=True) }}
    {% generation %}{{ message.content | trim }}{% endgeneration %}{{ eos_token }}
{% endfor %}
{% if tools is none and documents is none and padding is not defined %}no tools{% endif %}
{{ strftime_now('%Y') }}
{% if add_generation_prompt %}go on{% endif %}
"""
"""Uses the features that published templates rely on."""

CONVERSATIONS = {
    "one question": [{"role": "user", "content": "What is <this> & 'that'? é 😀"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "ignored", "content": "…"},
        {"role": "user", "content": "Bye", "name": "Ada"},
    ],
    "images": [
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "text", "text": "and "},
                {"type": "image"},
                {"type": "text", "text": "differ?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "video"}]},
    ],
}


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
@pytest.mark.parametrize(
    "source",
    [CHAT_TEMPLATE, QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE, WITH_EVERYTHING],
    ids=["tiny", "qwen2", "qwen3", "all"],
)
def test_renders_the_same_prompt_as_transformers(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    reference = reference_tokenizer(make_tokenizer(), **SPECIAL_TOKENS)
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    ours = ChatTemplate(source, SPECIAL_TOKENS).render(messages, add_generation_prompt=add_generation_prompt)
    assert ours == expected


def test_fallback_template_is_chatml_of_qwen2_vl() -> None:
    rendered = ChatTemplate(QWEN2_VL_TEMPLATE, {}).render(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
        add_generation_prompt=True,
    )
    assert rendered == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_refusals_reach_the_client() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([], add_generation_prompt=True)


def test_refuses_conversations_that_break_the_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(TemplateError, match="chat template refuses"):
        ChatTemplate("{{ messages[3].content.text }}", {}).render([], add_generation_prompt=True)
    assert template.render([{"content": "x"}], add_generation_prompt=True) == "x"


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_templates_are_sandboxed(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render([], add_generation_prompt=True)


def test_invalid_template_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="line 2 of the chat template"):
        ChatTemplate("\n{% for %}", {})


NAMED = [
    {"name": "tool_use", "template": "named tool_use {{ tools }}"},
    {"name": "default", "template": "named default"},
]


def write_checkpoint(path: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("files", "rendered"),
    [
        pytest.param(
            {"processor_config.json": {"chat_template": "processor"}, "chat_template.jinja": "jinja"},
            "processor",
            id="that of the processor first, as in transformers",
        ),
        pytest.param(
            {
                "processor_config.json": {"processor_class": "LlavaProcessor"},
                "chat_template.jinja": "jinja",
                "chat_template.json": {"chat_template": "json"},
                "tokenizer_config.json": {"chat_template": "config"},
            },
            "jinja",
            id="then chat_template.jinja",
        ),
        pytest.param(
            {"chat_template.json": {"chat_template": "json"}, "tokenizer_config.json": {"chat_template": "config"}},
            "json",
            id="then chat_template.json",
        ),
        pytest.param({"tokenizer_config.json": {"chat_template": "config"}}, "config", id="tokenizer_config.json"),
        pytest.param(
            {"tokenizer_config.json": {"chat_template": NAMED}}, "named default", id="default of several templates"
        ),
        pytest.param(
            {
                "tokenizer_config.json": {
                    "chat_template": "{{ eos_token }}{{ bos_token }}",
                    "eos_token": {"content": "E"},
                }
            },
            "E",
            id="special tokens in either spelling, or none",
        ),
        pytest.param(
            {
                "chat_template.jinja": "{{ bos_token }}{{ eos_token }}",
                "special_tokens_map.json": {"bos_token": "not this", "eos_token": "nor this"},
                "tokenizer_config.json": {"eos_token": "E", "added_tokens_decoder": {}},
            },
            "E",
            id="special tokens of newer checkpoints",
        ),
        pytest.param(
            {
                "chat_template.jinja": "{{ bos_token }}{{ eos_token }}",
                "special_tokens_map.json": {"bos_token": {"content": "B"}, "eos_token": "E"},
                "tokenizer_config.json": {"eos_token": "not this"},
            },
            "BE",
            id="special tokens of older checkpoints",
        ),
    ],
)
def test_loads_the_template_from_the_first_source_that_has_one(
    tmp_path: Path, files: Mapping[str, Any], rendered: str
) -> None:
    write_checkpoint(tmp_path, files)
    template = load_chat_templates(tmp_path, LLAMA, None).default
    assert template.render([], add_generation_prompt=True) == rendered


CONVERSATION = (ChatMessage(role="user", content=("Hi",)),)
TOOL = ToolDefinition(name="look", description=None, parameters="{}", strict=False)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": NAMED}},
        {
            "chat_template.jinja": "named default",
            "additional_chat_templates/tool_use.jinja": "named tool_use {{ tools }}",
        },
    ],
    ids=["in tokenizer_config.json", "in files, as transformers 5 writes them"],
)
def test_conversations_with_tools_have_the_template_of_that_name(tmp_path: Path, files: Mapping[str, Any]) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    write_checkpoint(tmp_path, files)
    templates = load_chat_templates(tmp_path, QWEN2_VL)
    assert templates.choose(CONVERSATION, ()).source == "named default"
    assert templates.choose(CONVERSATION, (TOOL,)).source == "named tool_use {{ tools }}"
    write_checkpoint(tmp_path, {"mine.jinja": "mine"})
    with pytest.raises(TemplateError, match="does not support tools"):
        load_chat_templates(tmp_path, QWEN2_VL, str(tmp_path / "mine.jinja")).choose(CONVERSATION, (TOOL,))


def test_override_takes_precedence(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"chat_template.jinja": "the checkpoint's", "mine.jinja": "mine"})
    template = load_chat_templates(tmp_path, LLAMA, str(tmp_path / "mine.jinja")).default
    assert template.render([], add_generation_prompt=True) == "mine"


def test_falls_back_to_the_architectures_template(tmp_path: Path) -> None:
    template = load_chat_templates(tmp_path, QWEN2_VL, None).default
    assert "<|im_start|>" in template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)


def test_missing_template_error_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--chat-template"):
        load_chat_templates(tmp_path, LLAMA, None)


def test_unreadable_override_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--chat-template 'nowhere' cannot be read"):
        load_chat_templates(tmp_path, QWEN2_VL, "nowhere")


def test_names_an_invalid_json_file(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"tokenizer_config.json": "{"})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not JSON"):
        load_chat_templates(tmp_path, LLAMA, None)
