"""Requests that would cost much to parse, tokenize or render are refused or served while the server serves others.

The server is watched for work that holds its event loop (`tests.loop_watchdog`): there must not be any.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import loop_watchdog
from tests.e2e.requests import CHAT, COMPLETIONS, ask
from tests.e2e.stack import Stack


@pytest.fixture(scope="module")
def watched_stack(stack: Stack) -> Iterator[Stack]:
    yield stack
    loop_watchdog.check(stack.log)


TOOL = {"type": "function", "function": {"name": "f"}}
HELLO = {"role": "user", "content": "Hello"}
WORDS = "the quick brown fox " * 50_000
SPECIAL = "<|im_end|>" * 100_000


@pytest.mark.parametrize(
    ("path", "members", "code"),
    [
        (CHAT, {"messages": [{"role": "user", "content": WORDS}]}, "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": SPECIAL}]}, "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": 10 * WORDS}]}, "context_length_exceeded"),
        (COMPLETIONS, {"prompt": WORDS}, "context_length_exceeded"),
        ("/tokenize", {"prompt": 10 * SPECIAL}, "context_length_exceeded"),
        (CHAT, {"messages": [HELLO] * 100_000}, "invalid_value"),
        (CHAT, {"messages": [HELLO], "x": [1] * 5_000_000}, "request_too_large"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]}, "invalid_value"),
        (CHAT, {"messages": [HELLO], "logit_bias": {str(i): 1 for i in range(100_000)}}, "invalid_value"),
        (CHAT, {"messages": [HELLO], "tools": [TOOL] * 100_000}, "invalid_value"),
        (CHAT, {"messages": [HELLO], "stop": ["x" * 1_000_000]}, "invalid_value"),
    ],
    ids=["words", "special tokens", "10 MB", "completion", "tokenize", "messages", "numbers", "parts", "logit_bias",
         "tools", "stop"],
)  # fmt: skip
def test_refuses_what_would_cost_too_much(watched_stack: Stack, path: str, members: dict[str, Any], code: str) -> None:
    answer = ask(watched_stack, path, **members)
    assert answer.body["error"]["code"] == code
    assert answer.status in (400, 413)
    assert watched_stack.health() == 200


def test_serves_what_is_costly_and_allowed(watched_stack: Stack) -> None:
    unknown = {f"unknown_{index}": index for index in range(100_000)}
    assert len(ask(watched_stack, CHAT, messages=[HELLO], max_tokens=2, **unknown).body["choices"]) == 1
    members = {
        "messages": [HELLO],
        "n": 128,
        "max_tokens": 40,
        "logprobs": True,
        "top_logprobs": 20,
        "ignore_eos": True,
    }
    choices = ask(watched_stack, CHAT, **members).body["choices"]
    assert [len(choice["logprobs"]["content"]) for choice in choices] == [40] * 128
    streamed = ask(watched_stack, CHAT, stream=True, **members).events
    chunks = [choice for event in streamed for choice in event["choices"] if choice["logprobs"]]
    assert sum(len(chunk["logprobs"]["content"]) for chunk in chunks) == 40 * 128
    many = [HELLO, {"role": "assistant", "content": "Hi"}] * 500
    answer = ask(watched_stack, CHAT, messages=[*many, HELLO], max_tokens=2)
    assert json.loads(answer.text)
