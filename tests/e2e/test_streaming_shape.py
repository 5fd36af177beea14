"""Streams have the format that OpenAI's clients expect, through Envoy, from the scripted engine."""

import json
from typing import Any

import pytest

from tests.e2e.requests import CHAT, COMPLETIONS, IGNORED_FIELDS, Answer, ask, chat
from tests.e2e.stack import Stack
from tests.engine.replies import reply_with

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'


def deltas(answer: Answer, index: int = 0) -> list[Any]:
    return [choice["delta"] for event in answer.events for choice in event["choices"] if choice["index"] == index]


def test_role_comes_first_and_finish_reason_last(echo_stack: Stack) -> None:
    first, *others, last = deltas(chat(echo_stack, reply_with("Grüße 🦉"), stream=True))
    assert first["role"] == "assistant"
    assert all(set(delta) == {"content"} and isinstance(delta["content"], str) for delta in others)
    assert last == {}
    assert first["content"] + "".join(delta["content"] for delta in others) == "Grüße 🦉"


def test_each_choice_has_one_finish_reason(echo_stack: Stack) -> None:
    events = chat(echo_stack, reply_with("Hello there, all of you"), stream=True, n=3).events
    ends = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted((end["index"], end["finish_reason"]) for end in ends) == [(0, "stop"), (1, "stop"), (2, "stop")]
    assert all(len(event["choices"]) == 1 for event in events)


def test_streams_choices_concurrently(echo_stack: Stack) -> None:
    members: dict[str, Any] = {"n": 4, "seed": 1}
    whole = chat(echo_stack, reply_with("Hello, ä"), **members).body["choices"]
    streamed = chat(echo_stack, reply_with("Hello, ä"), stream=True, **members)
    for choice in whole:
        texts = (delta.get("content", "") for delta in deltas(streamed, choice["index"]))
        assert "".join(texts) == choice["message"]["content"] == "Hello, ä"


def test_usage_chunk_is_last_and_only_on_request(echo_stack: Stack) -> None:
    assert not any("usage" in event for event in chat(echo_stack, reply_with("Hi"), stream=True).events)
    *events, last = chat(echo_stack, reply_with("Hi"), stream=True, stream_options={"include_usage": True}, n=2).events
    assert not any("usage" in event for event in events)
    whole = chat(echo_stack, reply_with("Hi"), n=2).body["usage"]
    assert (last["choices"], last["usage"]) == ([], whole)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_every_chunk_has_the_usage_so_far_on_request(echo_stack: Stack, path: str) -> None:
    asked = (
        {"prompt": reply_with("Hello, all of you")}
        if path == COMPLETIONS
        else {"messages": [{"role": "user", "content": reply_with("Hello, all of you")}]}
    )
    options = {"include_usage": True, "continuous_usage_stats": True}  # as GuideLLM sends them
    *events, last = ask(echo_stack, path, **asked, stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"]
    assert {event["usage"]["prompt_tokens"] for event in events} == {last["usage"]["prompt_tokens"]}


def test_usage_of_every_chunk_needs_the_usage_of_the_last_one(echo_stack: Stack) -> None:
    answer = chat(echo_stack, reply_with("Hi"), stream=True, stream_options={"continuous_usage_stats": True})
    assert not any("usage" in event for event in answer.events)
    assert answer.headers[IGNORED_FIELDS] == "stream_options.continuous_usage_stats"


def test_streams_the_name_of_a_tool_call_first(echo_stack: Stack) -> None:
    arguments = ['{"at": "the tree"}', '{"at": "ä 🦉", "twice": [1, {"a": null}]}']
    text = "Let me look.\n" + "\n".join(map(call, arguments))
    answer = chat(echo_stack, reply_with(text), stream=True, tools=TOOLS)
    assert "".join(delta.get("content", "") for delta in deltas(answer)) == "Let me look."
    pieces = [piece for delta in deltas(answer) for piece in delta.get("tool_calls", ())]
    for index, wanted in enumerate(arguments):
        opened, *others = [piece for piece in pieces if piece["index"] == index]
        assert (opened["type"], opened["function"]["name"], bool(opened["id"])) == ("function", "look", True)
        assert all(set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"} for piece in others)
        said = "".join(piece["function"]["arguments"] for piece in [opened, *others])
        assert (said, json.loads(said)) == (wanted, json.loads(wanted))
    assert answer.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_streams_the_reasoning_before_the_content(echo_stack: Stack) -> None:
    text = "<think>\nLet me see: ä 🦉\n\nSo.\n</think>\n\nYes."
    whole = chat(echo_stack, reply_with(text)).body
    message = whole["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Let me see: ä 🦉\n\nSo.", "Yes.")
    num_tokens = len("\nLet me see: ä 🦉\n\nSo.\n".encode())
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == num_tokens
    answer = chat(echo_stack, reply_with(text), stream=True, stream_options={"include_usage": True})
    found = deltas(answer)
    assert "".join(delta.get("reasoning", "") for delta in found) == message["reasoning"]
    assert "".join(delta.get("content", "") for delta in found) == message["content"]
    kinds = [kind for delta in found for kind in ("reasoning", "content") if delta.get(kind)]
    assert kinds == sorted(kinds, reverse=True)
    assert answer.events[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    "members", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_answers_have_no_reasoning_if_the_prompt_ends_it(echo_stack: Stack, members: dict[str, Any]) -> None:
    whole = chat(echo_stack, reply_with("<think> is a tag"), **members).body
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "<think> is a tag", "refusal": None}
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_unary_answer_has_the_same_tool_calls(echo_stack: Stack) -> None:
    (choice,) = chat(echo_stack, reply_with(call("{}")), tools=TOOLS).body["choices"]
    (made,) = choice["message"]["tool_calls"]
    assert (made["type"], made["function"]) == ("function", {"name": "look", "arguments": "{}"})
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_calls_a_named_tool_and_finishes_with_stop(echo_stack: Stack) -> None:
    named = {"type": "function", "function": {"name": "look"}}
    (choice,) = chat(echo_stack, reply_with(call("{}")), tools=TOOLS, tool_choice=named).body["choices"]
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "stop")


def test_tool_choice_none_disables_tool_calls(echo_stack: Stack) -> None:
    (choice,) = chat(echo_stack, reply_with("No."), tools=TOOLS, tool_choice="none").body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("No.", "stop")


def test_errors_come_before_the_first_chunk(echo_stack: Stack) -> None:
    for members in ({"n": 129}, {"structured_outputs": {"regex": "("}}, {"response_format": {"type": "json_schema"}}):
        answer = chat(echo_stack, reply_with("Hi"), stream=True, **members)
        assert (answer.status, answer.body["error"]["type"]) == (400, "invalid_request_error")


def test_stop_strings_never_leak(echo_stack: Stack) -> None:
    for stop in ("lo th", ["there", "Hello the"], "ä"):
        whole = chat(echo_stack, reply_with("Hello there, ä"), stop=stop).content
        streamed = chat(echo_stack, reply_with("Hello there, ä"), stop=stop, stream=True, n=5)
        for index in range(5):
            assert "".join(delta.get("content", "") for delta in deltas(streamed, index)) == whole
        assert not any(text in whole for text in ([stop] if isinstance(stop, str) else stop))
