"""One question through every API, at temperature 0: the same prompt, and the same tokens.

The typed API, chat completions and `LLM` tell the ids of tokens. Responses and Anthropic's Messages tell their number,
the text, the reasoning and the calls.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.client.openai_json import to_message
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.sampling_params import ReasoningBudget, ReasoningTags
from glimpse.offline.llm import LLM, SamplingParams
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.engine.offline.llm_inputs import load
from tests.protos.compiled import FILES, file_descriptor_set, message_class
from tests.server.requests import json_bodies, png, post_json
from tests.server.serving import served

DATA = base64.b64encode(png()).decode()
URL = f"data:image/png;base64,{DATA}"
SCHEMA = {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"], "additionalProperties": False}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "strict": True}
TYPE = {"name": "answers.v1.Point", "file_descriptor_set": base64.b64encode(file_descriptor_set(*FILES)).decode()}
TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n") + "{# </think> #}"
"""Opens the reasoning in the prompt."""
BUDGET = 5
MAX_TOKENS = 120
TEXT = "the other one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about an image, in the members of each API."""

    openai: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The typed API has the same."""
    anthropic: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """None: the API cannot ask it."""
    responses: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """None: the API cannot ask it."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Members of `LLM`'s SamplingParams."""
    llm: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """Other arguments of `LLM.chat`; None: it cannot ask it."""


QUESTIONS = {
    "image": Question(),
    "tools": Question(
        openai={"tools": [{"type": "function", "function": FUNCTION}]},
        anthropic={"tools": [TOOL]},
        responses={"tools": [{"type": "function", **FUNCTION}]},
        llm={"tools": [{"type": "function", "function": FUNCTION}]},
    ),
    "required tool": Question(
        openai={"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
        anthropic={"tools": [TOOL], "tool_choice": {"type": "any"}},
        responses={"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"},
        llm=None,
    ),
    "schema": Question(
        openai={"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        anthropic={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        responses={"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}},
        sampling={"structured_outputs": {"json": SCHEMA}},
    ),
    "message": Question(
        openai={"response_format": {"type": "protobuf", "protobuf": TYPE}},
        anthropic=None,
        responses=None,
        llm={"answer": message_class("Point")},
    ),
    "reasoning": Question(
        openai={"thinking_token_budget": BUDGET},
        anthropic={"thinking": {"type": "enabled", "budget_tokens": BUDGET}},
        responses=None,
    ),
    "reasoning that is cut": Question(),
}


@pytest.fixture(scope="module")
def thinking(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[grpc.Channel, LLM]]:
    """A server and `LLM`, whose model reasons."""
    folder = tmp_path_factory.mktemp("thinking")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    with served(tiny_checkpoint, folder, f"--chat-template={template}") as server, server.channel() as opened:
        yield opened, load(tiny_checkpoint, chat_template=str(template))


@pytest.fixture(scope="module")
def plain(tiny_checkpoint: Path) -> LLM:
    return load(tiny_checkpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What every API tells of an answer."""

    num_prompt_tokens: int
    num_tokens: int
    text: str
    reasoning: str
    calls: list[Any]
    """The arguments of each."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_api_gives_the_same_tokens(name: str, request: pytest.FixtureRequest, tiny_checkpoint: Path) -> None:
    question, sampling, reasons = QUESTIONS[name], dict(QUESTIONS[name].sampling), name.startswith("reasoning")
    fixtures = ("channel", "plain")
    channel, llm = request.getfixturevalue("thinking") if reasons else map(request.getfixturevalue, fixtures)
    if name == "reasoning":
        tags = ReasoningTags(opening="<think>", closing="</think>", is_open=True)
        closing = tuple(load_tokenizer(tiny_checkpoint).encode("</think>"))
        sampling["reasoning_budget"] = ReasoningBudget(tags=tags, max_tokens=BUDGET, closing_token_ids=closing)
    image = {"type": "image_url", "image_url": {"url": URL}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": TEXT}]}]
    body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, "return_token_ids": True}
    body |= question.openai

    wire = to_message(chat_pb2.CreateChatCompletionRequest, body)
    typed = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(wire)
    answer = typed_answer(typed)
    assert bool(answer.reasoning) == reasons
    assert bool(answer.calls) == (name == "required tool")
    posted = post_json(openai_pb2_grpc.OpenAIServiceStub(channel).CreateChatCompletion, body)
    assert chat_answer(posted) == answer
    assert posted["prompt_token_ids"] == typed.prompt_token_ids
    assert posted["choices"][0]["token_ids"] == typed.choices[0].token_ids
    if question.llm is not None:
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, **sampling)
        (output,) = llm.chat(messages, params, **question.llm)
        assert output.prompt_token_ids == typed.prompt_token_ids
        assert output.outputs[0].token_ids == typed.choices[0].token_ids
    if question.anthropic is not None:
        assert messages_answer(channel, question.anthropic) == answer
    if question.responses is not None:
        assert responses_answer(channel, question.responses) == answer


@pytest.mark.parametrize("result", [{"content": ""}, {"content": []}, {"content": None}, {}], ids=str)
def test_a_tool_may_return_nothing_in_every_api(result: Mapping[str, Any], channel: grpc.Channel, plain: LLM) -> None:
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    asked = {"role": "user", "content": TEXT}
    messages = [asked, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", **result}]
    posted = post_json(stub.CreateChatCompletion, {"messages": messages, "max_tokens": 1, "return_token_ids": True})
    (output,) = plain.chat(messages, SamplingParams(max_tokens=1))
    assert output.prompt_token_ids == posted["prompt_token_ids"]

    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at": 1}'}
    returned = {
        "type": "function_call_output",
        "call_id": "a",
        **dict.fromkeys(["output"][: len(result)], result.get("content")),
    }
    told = json.loads(stub.CountInputTokens(json_bodies({"input": [asked, call, returned]})).data)
    assert told["input_tokens"] == posted["usage"]["prompt_tokens"]

    use = {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}}
    returned = {"type": "tool_result", "tool_use_id": "a", **result}
    messages = [asked, {"role": "assistant", "content": [use]}, {"role": "user", "content": [returned]}]
    count: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel).CountMessageTokens
    told = json.loads(count(json_bodies({"messages": messages})).data)
    assert told["input_tokens"] == posted["usage"]["prompt_tokens"]


def typed_answer(typed: chat_pb2.CreateChatCompletionResponse) -> Answer:
    message = typed.choices[0].message
    return Answer(
        num_prompt_tokens=typed.usage.prompt_tokens,
        num_tokens=typed.usage.completion_tokens,
        text=message.content,
        reasoning=message.reasoning,
        calls=[json.loads(call.function.arguments) for call in message.tool_calls],
    )


def chat_answer(posted: Any) -> Answer:
    message = posted["choices"][0]["message"]
    return Answer(
        num_prompt_tokens=posted["usage"]["prompt_tokens"],
        num_tokens=posted["usage"]["completion_tokens"],
        text=message["content"] or "",
        reasoning=message.get("reasoning", ""),
        calls=[json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())],
    )


def messages_answer(channel: grpc.Channel, members: Mapping[str, Any]) -> Answer:
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    content = [{"type": "image", "source": source}, {"type": "text", "text": TEXT}]
    prompt = {"messages": [{"role": "user", "content": content}], **members}
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    told = post_json(stub.CreateMessage, {**prompt, "temperature": 0, "max_tokens": MAX_TOKENS})
    num_prompt_tokens = told["usage"]["input_tokens"] + told["usage"]["cache_read_input_tokens"]
    assert json.loads(stub.CountMessageTokens(json_bodies(prompt)).data) == {"input_tokens": num_prompt_tokens}
    return Answer(
        num_prompt_tokens=num_prompt_tokens,
        num_tokens=told["usage"]["output_tokens"],
        text=joined(told["content"], "text", "text"),
        reasoning=joined(told["content"], "thinking", "thinking"),
        calls=[block["input"] for block in told["content"] if block["type"] == "tool_use"],
    )


def responses_answer(channel: grpc.Channel, members: Mapping[str, Any]) -> Answer:
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": TEXT}]
    body = {
        "input": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_output_tokens": MAX_TOKENS,
        **members,
    }
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    told = post_json(stub.CreateResponse, body)
    assert json.loads(stub.CountInputTokens(json_bodies(body)).data) == {
        "object": "response.input_tokens",
        "input_tokens": told["usage"]["input_tokens"],
    }
    parts = [part for item in told["output"] for part in item.get("content", ())]
    return Answer(
        num_prompt_tokens=told["usage"]["input_tokens"],
        num_tokens=told["usage"]["output_tokens"],
        text=joined(parts, "output_text", "text"),
        reasoning=joined(parts, "reasoning_text", "text"),
        calls=[json.loads(item["arguments"]) for item in told["output"] if item["type"] == "function_call"],
    )


def joined(parts: Any, kind: str, member: str) -> str:
    """Returns the texts of the parts of a kind, joined."""
    return "".join(each[member] for each in parts if each["type"] == kind)
