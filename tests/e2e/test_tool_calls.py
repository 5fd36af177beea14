"""Calls that the embedded model opens by itself name one of the tools and match its schema."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic, BadRequestError, beta_tool
from anthropic.types import ThreadUnsupportedRequestError

from tests.e2e.requests import chat
from tests.e2e.stack import Stack
from tests.engine.replies import reply_with

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "stock_price": {
        "type": "object",
        "properties": {"symbol": {"enum": ["AAPL", "MSFT"]}, "days": {"type": "integer", "maximum": 99}},
        "required": ["symbol", "days"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
OPENING = 1652
"""The token `<tool_call>`."""


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_opened_calls_are_valid(stack: Stack, temperature: float) -> None:
    members = {"tools": TOOLS, "n": 4, "seed": 3, "temperature": temperature, "max_tokens": 90}
    choices = chat(stack, "What is the weather in Paris?", **members, logit_bias={OPENING: 9}).body["choices"]
    called = [choice for choice in choices if choice["message"].get("tool_calls")]
    assert called
    for choice in choices:
        assert "tool_call" not in (choice["message"]["content"] or "")
    for choice in called:
        *calls, last = choice["message"]["tool_calls"]
        for call in calls if choice["finish_reason"] == "length" else [*calls, last]:
            check(**call["function"])
        assert choice["finish_reason"] in ("tool_calls", "length")


def test_streams_make_the_same_calls(stack: Stack) -> None:
    members = {"tools": TOOLS, "temperature": 0, "max_tokens": 90, "logit_bias": {OPENING: 9}}
    whole = chat(stack, "What is the weather in Paris?", **members).body["choices"][0]
    events = chat(stack, "What is the weather in Paris?", **members, stream=True).events
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    streamed = dict[int, list[str]]()
    for piece in pieces_of(deltas):
        streamed.setdefault(piece["index"], []).append(piece["function"].get("arguments", ""))
    assert ["".join(texts) for texts in streamed.values()] == [
        call["function"]["arguments"] for call in whole["message"]["tool_calls"]
    ]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    assert "tool_call" not in "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_alone_are_called_and_all_are_seen(stack: Stack, mode: str) -> None:
    tools = [{"type": "function", "function": {"name": "stock_price"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    members = {"tools": TOOLS, "n": 3, "seed": 3, "max_tokens": 90, "logit_bias": {OPENING: 100}}
    answer = chat(stack, "What is the weather in Paris?", **members, tool_choice=choice).body
    made = [call["function"] for each in answer["choices"] for call in each["message"].get("tool_calls", ())]
    assert {call["name"] for call in made} == {"stock_price"}
    free = chat(stack, "What is the weather in Paris?", tools=TOOLS, max_tokens=1).body
    assert answer["usage"]["prompt_tokens"] == free["usage"]["prompt_tokens"]


def test_calls_of_other_tools_than_the_allowed_are_text(echo_stack: Stack) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    calls = "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>\n' for name in ("weather", "stock_price")
    )
    (whole,) = chat(echo_stack, reply_with(calls), tools=TOOLS, tool_choice=choice).body["choices"]
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["weather"]
    assert "stock_price" in whole["message"]["content"]
    refused = chat(echo_stack, "Hi", tools=TOOLS[1:], tool_choice=choice)
    field = "tool_choice.allowed_tools.tools[0].function.name"
    assert (refused.status, refused.body["error"]["param"]) == (400, field)


def test_call_that_is_cut_off_is_not_text(stack: Stack) -> None:
    members = {"tools": TOOLS, "temperature": 0, "logit_bias": {OPENING: 100}, "max_tokens": 6}
    (choice,) = chat(stack, "What is the weather in Paris?", **members).body["choices"]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]


def pieces_of(deltas: list[Mapping[str, Any]]) -> Iterator[Any]:
    return (piece for delta in deltas for piece in delta.get("tool_calls", ()))


@beta_tool
def stock_price(symbol: str) -> str:
    """Tells the price of a stock."""
    return f"{symbol}: 100 dollars"


@pytest.fixture
def anthropic_client(stack: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        yield client


def test_anthropic_s_tool_runner_sends_the_whole_conversation(anthropic_client: Anthropic) -> None:
    def run(**members: Any) -> list[tuple[object, int]]:
        runner = anthropic_client.beta.messages.tool_runner(
            model="nano",
            max_tokens=90,
            messages=[{"role": "user", "content": "What is the price of AAPL?"}],
            tools=[stock_price],
            tool_choice={"type": "any"},
            extra_body={"temperature": 0},
            max_iterations=2,
            **members,
        )
        return [
            (block.input, message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))
            for message in runner
            for block in message.content
            if block.type == "tool_use"
        ]

    asked = run()  # for a thread, in which the server would keep the conversation
    assert asked == run(thread=False)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("members", "field"),
    [({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"), ({"compaction": {}}, "compaction")],
)
def test_what_asks_anthropic_to_keep_a_conversation_is_refused(
    anthropic_client: Anthropic, members: Any, field: str
) -> None:
    asked: Any = {"model": "nano", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(BadRequestError, match=f"'{field}': not supported") as caught:
        anthropic_client.beta.messages.create(**asked, **members)
    assert isinstance(caught.value, ThreadUnsupportedRequestError) == (field == "thread")
