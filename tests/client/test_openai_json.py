"""`Client` takes OpenAI's dicts and words, and names what it does not know."""

import json
from pathlib import Path
from typing import Any

import PIL.Image
import pydantic
import pytest

from glimpse.client import Audio, Image, Message, OptionError
from glimpse.client.requests import chat_request, completion_request, count_request, tokenize_request
from glimpse.v1 import chat_pb2, content_pb2
from tests.server.requests import png

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA, "strict": True}
DATA_URL = "data:image/png;base64,AAAA"


class City(pydantic.BaseModel):
    """An answer."""

    name: str


def test_conversations_of_dicts_are_those_of_messages() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    typed_call = content_pb2.ToolCall(id="1", function=content_pb2.FunctionCall(name="weather", arguments="{}"))
    url = {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}, "uuid": "a"}
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    dicts = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [url, audio, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "mild", "tool_call_id": "1"},
    ]
    typed = [
        Message("system", "Be brief."),
        Message("user", [Image(DATA_URL, detail="low", uuid="a"), Audio(b"RIFF"), "What?"]),
        Message("assistant", tool_calls=[typed_call], reasoning="Hm."),
        Message("tool", "mild", tool_call_id="1"),
    ]
    given, expected = chat_request(dicts, {}), chat_request(typed, {})
    given.messages[1].content[1].audio.ClearField("format")
    assert given == expected
    assert count_request([*typed[:2], *dicts[2:]], {}).messages == expected.messages
    assert tokenize_request(dicts[:1], {}).messages == expected.messages[:1]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "PATH"}},
        {"type": "image_url", "image_url": "PATH"},
        {"type": "image", "image": "PATH"},
    ],
)
def test_files_of_dicts_are_read_as_those_of_images(part: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    part = json.loads(json.dumps(part).replace("PATH", str(path)))
    expected = chat_request([Image(path), "What?"], {})
    assert chat_request([part, "What?"], {}) == expected
    assert chat_request([{"role": "user", "content": [Image(path), {"type": "text", "text": "What?"}]}], {}) == expected
    with PIL.Image.open(path) as image:
        assert chat_request([{"type": "image", "image": image}], {}).messages[0].content[0].image.source.data


def test_options_of_openai_become_fields() -> None:
    request = chat_request(
        "Hello",
        {
            "max_tokens": 5,
            "temperature": 0,
            "stop": "END",
            "n": 2,
            "seed": 1,
            "logit_bias": {"7": -1},
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "service_tier": "auto",
            "structured_outputs": {"choice": ["a", "b"]},
        },
    )
    generation, (tool,) = request.generation, request.tools
    assert (generation.max_completion_tokens, generation.temperature, generation.seed) == (5, 0, 1)
    assert (list(generation.stop), generation.n, dict(generation.logit_bias)) == (["END"], 2, {7: -1})
    assert (tool.function.name, json.loads(tool.function.parameters), tool.function.strict) == ("weather", SCHEMA, True)
    assert request.tool_choice.named_tool.function.name == "weather"
    assert request.service_tier == chat_pb2.SERVICE_TIER_AUTO
    assert list(request.structured_outputs.choice.values) == ["a", "b"]
    assert chat_request("Hello", {"tool_choice": "none"}).tool_choice.mode == chat_pb2.TOOL_CHOICE_MODE_NONE
    listed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    choice = chat_request("Hello", {"tool_choice": {"type": "allowed_tools", "allowed_tools": listed}}).tool_choice
    assert choice.named_tool.allowed_tools.mode == chat_pb2.ALLOWED_TOOLS_MODE_REQUIRED
    assert choice.named_tool.allowed_tools.tools[0].function.name == "weather"


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        (SCHEMA, SCHEMA),
        ({"anyOf": [SCHEMA, {"type": "null"}]}, {"anyOf": [SCHEMA, {"type": "null"}]}),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}, SCHEMA),
        (City, City.model_json_schema()),
    ],
)
def test_response_formats_are_schemas_models_and_openai_s(given: Any, schema: dict[str, Any]) -> None:
    response_format = chat_request("Hello", {"response_format": given}).response_format
    assert json.loads(response_format.json_schema.schema) == schema


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_response_formats_without_a_schema(kind: str) -> None:
    assert chat_request("Hello", {"response_format": {"type": kind}}).response_format.WhichOneof("format") == kind


def test_completions_take_texts_and_tokens() -> None:
    assert [each.text for each in completion_request("a", {}).prompts] == ["a"]
    assert [list(each.token_ids.ids) for each in completion_request([5, 6], {}).prompts] == [[5, 6]]
    several = completion_request(["a", "b"], {"logprobs": 2, "max_tokens": 3, "stop": "c"})
    assert [each.text for each in several.prompts] == ["a", "b"]
    assert (several.num_logprobs, several.generation.max_completion_tokens) == (2, 3)
    assert [list(each.token_ids.ids) for each in completion_request([[5], [6, 7]], {}).prompts] == [[5], [6, 7]]


USER = {"role": "user"}


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("Hi", {"max_token": 5}, "'max_token': there is no such name; did you mean 'max_tokens'?"),
        ("Hi", {"maxTokens": 5}, "'maxTokens': there is no such name; did you mean 'max_tokens'?"),
        (
            "Hi",
            {"max_tokens": 5, "max_completion_tokens": 6},
            "expected one of 'max_tokens' and 'max_completion_tokens'",
        ),
        ("Hi", {"stream": True}, "'stream': call `stream` instead"),
        ("Hi", {"format": "json"}, "'format': use 'response_format'"),
        ("Hi", {"temperature": "hot"}, "'temperature': expected a number, got 'hot'"),
        ("Hi", {"temperature": True}, "'temperature': expected a number, got True"),
        ("Hi", {"n": -1}, "'n': expected an integer of at least 0, got -1"),
        ("Hi", {"logprobs": 5}, "'logprobs': expected true or false, got 5"),
        ("Hi", {"tool_choice": "any"}, "'tool_choice': expected 'none' or 'auto' or 'required', got 'any'"),
        ("Hi", {"tools": [{"type": "web_search"}]}, "'tools[0].type': expected 'function', got 'web_search'"),
        ("Hi", {"response_format": {"type": "json"}}, "'response_format.type': expected 'text' or 'json_object' or"),
        ([USER | {"contents": "Hi"}], {}, "'messages[0].contents': there is no such name; did you mean 'content'?"),
        ([{"role": "bot", "content": "Hi"}], {}, "'messages[0].role': expected 'system' or 'developer' or 'user'"),
        (
            [USER | {"content": [{"type": "painting"}]}],
            {},
            "'messages[0].content[0].type': expected 'text' or 'image_url'",
        ),
    ],
)
def test_names_what_it_does_not_know(prompt: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        chat_request(prompt, options)
    assert message in str(caught.value)


def test_warns_of_a_path_that_is_sent_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png())
    meant = r"is sent as text, and there is such a file; did you mean Image\('.*a\.png'\)"
    with pytest.warns(UserWarning, match=meant):
        request = chat_request([str(path), "What is in it?"], {})
    assert request.messages[0].content[0].text == str(path)
