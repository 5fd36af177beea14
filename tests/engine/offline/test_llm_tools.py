"""Tools in the offline API: rendered in the prompt, called, answered in conversations, and refused if invalid."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import PIL.Image
import pytest

from glimpse.engine.checkpoint.text.conversation import NamedTool, ToolChoice, ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.checkpoint.text.tools import (
    FORMATS,
    ToolCallArguments,
    ToolCallStarted,
    ToolFormat,
    new_tool_parser,
    tool_grammar,
)
from glimpse.engine.protocol.messages import FinishReason
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.tokenizer import make_tokenizer
from tests.paths import TRAINING_TEMPLATE

GREEDY = SamplingParams(temperature=0, max_tokens=4)
TOKENIZER = Tokenizer(make_tokenizer())
TEMPLATE = TRAINING_TEMPLATE
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "function", "id": "c1", "function": {"name": "look", "arguments": '{"at": "the"}'}}
HI = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image_pil", "image_pil": PIL.Image.fromarray(np.zeros((56, 56, 3), dtype=np.uint8))}


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    return LLM(
        tiny_checkpoint,
        dtype="float32",
        device="cpu",
        kv_cache_bytes=8 << 20,
        max_model_len=1024,
        num_threads=1,
        chat_template=str(TEMPLATE),
    )


def shown(llm: LLM, messages: list[dict[str, Any]], **options: Any) -> str:
    """Returns the prompt as the model receives it, without special tokens."""
    (output,) = llm.chat(messages, GREEDY, **options)
    return TOKENIZER.decode(output.prompt_token_ids)


def test_shows_tools_to_the_model(llm: LLM) -> None:
    function = '{"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}'
    assert function in shown(llm, [HI], tools=[LOOK])
    assert "tool" not in shown(llm, [HI])


def test_shows_tool_calls_and_results_to_the_model(llm: LLM) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Here:"}, IMAGE]}
    prompt = shown(llm, [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result])
    assert '<tool_call>\n{"name": "look", "arguments": {"at": "the"}}\n</tool_call>' in prompt
    assert "<tool_response>\nHere:" in prompt


def test_a_tool_call_needs_no_id_and_its_arguments_may_be_a_dict(llm: LLM) -> None:
    """Calls are part of the text that `LLM` returns, which has no ids."""
    bare = {"type": "function", "function": {"name": "look", "arguments": {"at": "the"}}}
    result = {"role": "tool", "content": "Here:"}
    with_ids, without = (
        shown(llm, [HI, {"role": "assistant", "tool_calls": [call]}, answer])
        for call, answer in ((CALL, result | {"tool_call_id": "c1"}), (bare, result))
    )
    assert with_ids == without
    assert shown(llm, [HI, result | {"tool_call_id": "of a call in a text"}]).endswith(
        without[without.index("Here:") :]
    )


def test_continues_the_final_message(llm: LLM) -> None:
    messages = [HI, {"role": "assistant", "content": "the en"}]
    assert shown(llm, messages, add_generation_prompt=False, continue_final_message=True).endswith("the en")
    assert shown(llm, [HI], add_generation_prompt=False).endswith("user\nHi\n")


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
DEFINITIONS = [
    ToolDefinition(name="weather", description=None, parameters=json.dumps(WEATHER), strict=True),
    ToolDefinition(name="now", description=None, parameters=json.dumps(NOTHING), strict=False),
]


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("choice", [ToolMode.REQUIRED, NamedTool(name="weather")], ids=["required", "named"])
def test_random_weights_make_valid_tool_calls(llm: LLM, tool_format: ToolFormat, choice: ToolChoice) -> None:
    grammar = tool_grammar(tool_format, DEFINITIONS, choice, parallel=False)
    samplings = [SamplingParams(grammar=grammar, temperature=1.0, seed=seed, max_tokens=400) for seed in range(5)]
    outputs = llm.chat([[HI]] * len(samplings), samplings, progress=False)
    whole = [output.outputs[0].text for output in outputs if output.outputs[0].finish_reason is FinishReason.STOP]
    assert whole
    for answer in whole:
        parser = new_tool_parser(tool_format, tools=DEFINITIONS)
        opened, arguments = [*parser.feed(answer), *parser.finish()]
        assert isinstance(opened, ToolCallStarted)
        assert isinstance(arguments, ToolCallArguments)
        assert opened.name == "weather" or choice is ToolMode.REQUIRED
        jsonschema.validate(json.loads(arguments.text), WEATHER if opened.name == "weather" else NOTHING)


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": LOOK}, "tools': expected an array, got an object"),
        (
            {"tools": [{"type": "custom", "function": {}}]},
            r"tools\[0\]\.type': expected one of 'function', got 'custom'",
        ),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]\.function': required, but missing"),
        ({"tools": [tool()]}, r"tools\[0\]\.function\.name': expected the function's name"),
        ({"tools": [tool(name="f", parameter={})]}, r"function\.parameter': unknown field; did you mean 'parameters'"),
        ({"tools": [tool(name="f", description=1)]}, r"tools\[0\]\.function\.description"),
        ({"tools": [tool(name="f", strict="no")]}, r"tools\[0\]\.function\.strict"),
        ({"tools": [tool(name="f", parameters=[])]}, r"tools\[0\]\.function\.parameters': expected a JSON Schema"),
        ({"tools": [tool(name="f", parameters={"x": {1}})]}, "tools': expected a value that JSON has, got set"),
        ({"tools": [LOOK, LOOK]}, r"tools\[1\]\.function\.name': expected unique names, got 'look' twice"),
        ({"continue_final_message": True}, "continue_final_message': cannot be combined with add_generation_prompt"),
        ({"chat_template_kwargs": {"tools": []}}, r"chat_template_kwargs\.tools': this variable is reserved"),
    ],
)
def test_names_invalid_options(llm: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.chat([HI], GREEDY, **options)


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, r"tool_calls': only assistant"),
        ({"role": "assistant", "content": None}, r"content': expected content or tool calls, got neither"),
        ({"role": "assistant", "tool_calls": [CALL | {"id": 1}]}, r"tool_calls\[0\]\.id': expected a string"),
        (
            {"role": "assistant", "tool_calls": [tool(name="f", arguments="[")]},
            r"tool_calls\[0\]\.function\.arguments': .*not JSON",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": 1}, r"tool_call_id': expected a string"),
    ],
)
def test_names_the_field_of_an_invalid_tool_call(llm: LLM, message: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError, match=refusal):
        llm.chat([HI, message], GREEDY)


def test_refuses_tools_for_a_template_without_tools(tiny_checkpoint: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_cache_bytes": 8 << 20, "num_threads": 1}
    with pytest.raises(InputError, match="tool_template': expected 'auto' or 'off', got 'on'"):
        LLM(tiny_checkpoint, tool_template="on", **options)  # type: ignore[arg-type]
    plain = LLM(tiny_checkpoint, tool_template="off", **options)
    with pytest.raises(InputError, match="messages': the model's chat template does not support tools"):
        plain.chat([HI], GREEDY, tools=[LOOK])
