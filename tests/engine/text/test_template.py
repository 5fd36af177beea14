"""A checkpoint's template is found where it is, renders as transformers renders it, and refuses in words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.errors import CheckpointError
from glimpse.engine.text.template import QWEN2_VL_TEMPLATE, ChatTemplate, TemplateError, load_chat_template
from tests.checkpoints import CHAT_TEMPLATE, make_tokenizer
from tests.engine.text.reference import reference_tokenizer

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
"""Whatever templates in use rely on."""

CONVERSATIONS = {
    "one question": [{"role": "user", "content": "What is <this> & 'that'? é 😀"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "ignored", "content": "…"},
        {"role": "user", "content": "Bye", "name": "Ada"},
    ],
    "pictures": [
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
@pytest.mark.parametrize("source", [CHAT_TEMPLATE, QWEN2_VL_TEMPLATE, WITH_EVERYTHING], ids=["tiny", "qwen2", "all"])
def test_the_prompt_is_the_one_that_transformers_renders(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    reference = reference_tokenizer(make_tokenizer(), **SPECIAL_TOKENS)
    expected = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    ours = ChatTemplate(source, SPECIAL_TOKENS).render(messages, add_generation_prompt=add_generation_prompt)
    assert ours == expected


def test_the_built_in_template_is_qwen2_vls_chatml() -> None:
    rendered = ChatTemplate(QWEN2_VL_TEMPLATE, {}).render(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}],
        add_generation_prompt=True,
    )
    assert rendered == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is this?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_refusal_by_the_template_is_the_clients_to_read() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render([], add_generation_prompt=True)


def test_a_conversation_that_breaks_the_template_is_a_refusal() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(TemplateError, match="chat template refuses"):
        ChatTemplate("{{ messages[3].content.text }}", {}).render([], add_generation_prompt=True)
    assert template.render([{"content": "x"}], add_generation_prompt=True) == "x"


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, {}).render([], add_generation_prompt=True)


def test_text_that_is_no_template_is_a_broken_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="line 2 of the chat template"):
        ChatTemplate("\n{% for %}", {})


NAMED = [{"name": "tool_use", "template": "named tool_use"}, {"name": "default", "template": "named default"}]


def write_checkpoint(path: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("files", "rendered"),
    [
        pytest.param(
            {
                "chat_template.jinja": "jinja",
                "chat_template.json": {"chat_template": "json"},
                "tokenizer_config.json": {"chat_template": "config"},
            },
            "jinja",
            id="chat_template.jinja first",
        ),
        pytest.param(
            {"chat_template.json": {"chat_template": "json"}, "tokenizer_config.json": {"chat_template": "config"}},
            "json",
            id="then chat_template.json",
        ),
        pytest.param({"tokenizer_config.json": {"chat_template": "config"}}, "config", id="then tokenizer_config.json"),
        pytest.param({"tokenizer_config.json": {"chat_template": NAMED}}, "named default", id="of several the default"),
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
    ],
)
def test_the_template_is_taken_from_the_first_place_that_has_one(
    tmp_path: Path, files: Mapping[str, Any], rendered: str
) -> None:
    write_checkpoint(tmp_path, files)
    template = load_chat_template(tmp_path, "Unknown", None)
    assert template.render([], add_generation_prompt=True) == rendered


def test_a_file_named_by_the_operator_wins(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"chat_template.jinja": "the checkpoint's", "mine.jinja": "mine"})
    template = load_chat_template(tmp_path, "Unknown", str(tmp_path / "mine.jinja"))
    assert template.render([], add_generation_prompt=True) == "mine"


def test_a_family_has_a_template_of_its_own(tmp_path: Path) -> None:
    template = load_chat_template(tmp_path, "Qwen2VLForConditionalGeneration", None)
    assert "<|im_start|>" in template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True)


def test_without_any_template_the_error_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--chat-template"):
        load_chat_template(tmp_path, "Unknown", None)


def test_a_named_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--chat-template 'nowhere' cannot be read"):
        load_chat_template(tmp_path, "Qwen2VLForConditionalGeneration", "nowhere")


def test_a_broken_json_file_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"tokenizer_config.json": "{"})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not JSON"):
        load_chat_template(tmp_path, "Unknown", None)
