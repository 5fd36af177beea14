"""Tests for tool call formats: detection, call ids and tags."""

import re

import pytest

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import FORMATS, ToolFormat, find_format, new_tool_call_id, tag_ids
from tests.checkpoints.tokenizer import make_tokenizer


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", None),
        ("{% if tools %}Call one with <tool_call>{% endif %}", "hermes"),
        ("{% if tools %}Call one with <tool_call> <function=NAME> <parameter=NAME>{% endif %}", "qwen3_coder"),
        ("{% if tools %}Call one with <tool_call>NAME <arg_key>KEY</arg_key>{% endif %}", "glm45"),
        ("{% if tools %}<|tool|>{{ tools }}<|/tool|>{% endif %}", "phi4_mini"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral_args"),
        ("{% for tool in tools %}<|tool>{{ tool }}<tool|>{% endfor %}<|tool_call>call:", "gemma4"),
        ("{% if tools %}List of tools: <|tool_list_start|>[{{ tools }}]{% endif %}", "lfm2"),
        ("{% if tools %}<|python_tag|>{% endif %}", "llama"),
        ("""{{ 'Answer with {"name": NAME, "parameters": OBJECT}' if tools }}""", "llama"),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", "json"),
    ],
)
def test_detects_the_format_of_a_template(template: str, name: str | None) -> None:
    assert find_format(template) == (None if name is None else FORMATS[name])


def test_format_name_overrides_the_template() -> None:
    assert find_format("<tool_call>{{ tools }}", "mistral") is FORMATS["mistral"]
    assert find_format("{{ messages }}", "json") is FORMATS["json"]


def test_unknown_format_error_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match="of auto, mistral_args, mistral, qwen3_coder, glm45, hermes, phi4_mini, gemma4, lfm2, llama, json, got",
    ):
        find_format("", "xml")


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS.keys())
def test_tags_are_matched_without_backtracking(tool_format: ToolFormat) -> None:
    """The parser relies on it: where matching a tag fails, no other tag has begun inside."""
    for tag in tool_format.tags:
        assert tag[0] not in tag[1:]


def test_call_ids_have_the_format_that_templates_accept() -> None:
    assert re.fullmatch(r"call_[A-Za-z0-9]{24}", new_tool_call_id(FORMATS["hermes"]))
    assert re.fullmatch(r"[A-Za-z0-9]{9}", new_tool_call_id(FORMATS["mistral"]))
    assert new_tool_call_id(FORMATS["mistral"]) != new_tool_call_id(FORMATS["mistral"])


def test_finds_tags_that_are_special_tokens() -> None:
    raw = make_tokenizer()
    assert tag_ids(FORMATS["mistral"], Tokenizer(raw)) == {}
    raw.add_special_tokens(["[TOOL_CALLS]", "[TOOL_RESULTS]"])
    raw.add_tokens(["<tool_call>"])
    assert tag_ids(FORMATS["mistral"], Tokenizer(raw)) == {"[TOOL_CALLS]": raw.token_to_id("[TOOL_CALLS]")}
    assert tag_ids(FORMATS["hermes"], Tokenizer(raw)) == {}
    raw.add_special_tokens(["[ARGS]", "[CALL_ID]"])
    assert list(tag_ids(FORMATS["mistral_args"], Tokenizer(raw))) == ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
