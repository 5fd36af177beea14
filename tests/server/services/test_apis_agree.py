"""One question through every API, at temperature 0: the same prompt, and the same tokens.

The typed API, chat completions and `LLM` tell the ids of tokens. Anthropic's Messages have none: what they count is
compared, and their texts, reasoning and calls.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

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
from tests.server.requests import png
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub
DATA = base64.b64encode(png()).decode()
SCHEMA = {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"], "additionalProperties": False}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA, "strict": True}
TYPE = {"name": "answers.v1.Point", "file_descriptor_set": base64.b64encode(file_descriptor_set(*FILES)).decode()}
TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n") + "{# </think> #}"
"""Opens the reasoning in the prompt."""
BUDGET = 5
MAX_TOKENS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about an image, in the members of each API."""

    openai: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those of the typed API too."""
    anthropic: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """None: the API cannot ask it."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of `LLM`'s SamplingParams."""
    llm: Mapping[str, Any] | None = field(default_factory=dict[str, Any])
    """Other arguments of `LLM.chat`; None: it cannot ask it."""


QUESTIONS = {
    "picture": Question(),
    "tools": Question(
        openai={"tools": [{"type": "function", "function": FUNCTION}]},
        anthropic={"tools": [TOOL]},
        llm={"tools": [{"type": "function", "function": FUNCTION}]},
    ),
    "required tool": Question(
        openai={"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
        anthropic={"tools": [TOOL], "tool_choice": {"type": "any"}},
        llm=None,
    ),
    "schema": Question(
        openai={"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        anthropic={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        sampling={"structured_outputs": {"json": SCHEMA}},
    ),
    "message": Question(
        openai={"response_format": {"type": "protobuf", "protobuf": TYPE}},
        anthropic=None,
        llm={"answer": message_class("Point")},
    ),
    "reasoning": Question(
        openai={"thinking_token_budget": BUDGET},
        anthropic={"thinking": {"type": "enabled", "budget_tokens": BUDGET}},
    ),
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


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_api_gives_the_same_tokens(name: str, request: pytest.FixtureRequest, tiny_checkpoint: Path) -> None:
    question, sampling = QUESTIONS[name], dict(QUESTIONS[name].sampling)
    if name == "reasoning":
        channel, llm = request.getfixturevalue("thinking")
        tags = ReasoningTags(opening="<think>", closing="</think>", is_open=True)
        closing = tuple(load_tokenizer(tiny_checkpoint).encode("</think>"))
        sampling["reasoning_budget"] = ReasoningBudget(tags=tags, max_tokens=BUDGET, closing_token_ids=closing)
    else:
        channel, llm = request.getfixturevalue("channel"), request.getfixturevalue("plain")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "the other one"}]}]
    body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, **question.openai}
    body["return_token_ids"] = True

    posted = post(openai_pb2_grpc.OpenAIServiceStub(channel), "CreateChatCompletion", body)
    (choice,) = posted["choices"]
    typed = Chat(channel).CreateChatCompletion(to_message(chat_pb2.CreateChatCompletionRequest, body))
    message = typed.choices[0].message
    assert list(typed.prompt_token_ids) == posted["prompt_token_ids"]
    assert list(typed.choices[0].token_ids) == choice["token_ids"]
    assert message.content == (choice["message"]["content"] or "")
    assert message.reasoning == choice["message"].get("reasoning", "")
    assert bool(message.reasoning) == (name == "reasoning")
    assert bool(message.tool_calls) == (name == "required tool")

    if question.llm is not None:
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, **sampling)
        (output,) = llm.chat(messages, params, **question.llm)
        assert output.prompt_token_ids == posted["prompt_token_ids"]
        assert output.outputs[0].token_ids == choice["token_ids"]
    if question.anthropic is not None:
        source = {"type": "base64", "media_type": "image/png", "data": DATA}
        content = [{"type": "image", "source": source}, {"type": "text", "text": "the other one"}]
        asked = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": MAX_TOKENS}
        asked |= question.anthropic
        told = post(anthropic_pb2_grpc.AnthropicServiceStub(channel), "CreateMessage", asked)
        usage = told["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(posted["prompt_token_ids"])
        assert usage["output_tokens"] == len(choice["token_ids"])
        assert joined(told, "thinking") == message.reasoning
        assert joined(told, "text") == message.content
        calls = [json.dumps(each["input"]) for each in told["content"] if each["type"] == "tool_use"]
        assert list(map(json.loads, calls)) == [json.loads(call.function.arguments) for call in message.tool_calls]


def post(stub: Any, method: str, body: Mapping[str, Any]) -> Any:
    pieces = getattr(stub, method)(iter([HttpBody(content_type="application/json", data=json.dumps(body).encode())]))
    return json.loads(b"".join(piece.data for piece in pieces))


def joined(message: Any, kind: str) -> str:
    """Returns the blocks of a kind, joined."""
    return "".join(each[kind] for each in message["content"] if each["type"] == kind)
