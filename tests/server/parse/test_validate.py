"""What the protos demand of a message, and how what is amiss is named."""

import math
from typing import Any

import pytest
from google.protobuf.message import Message

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.server.parse.validate import Violation, violations
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2, model_pb2


def request(**generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    options = generation_pb2.GenerationOptions(**generation)
    message = content_pb2.Message(role=content_pb2.ROLE_USER)
    return chat_pb2.CreateChatCompletionRequest(messages=[message], generation=options)


def test_accepts_a_plain_request() -> None:
    assert violations(request()) == []
    assert violations(chat_pb2.CreateChatCompletionResponse()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0}, {"temperature": 2}, {"top_p": 0}, {"top_p": 1}, {"top_k": -1}, {"n": 1}, {"n": 128},
        {"frequency_penalty": -2}, {"stop": ["a"] * 16}, {"max_completion_tokens": 1}, {"logit_bias": {5: 1}},
    ],
)  # fmt: skip
def test_accepts_values_at_their_bounds(options: dict[str, Any]) -> None:
    assert violations(request(**options)) == []


@pytest.mark.parametrize(
    ("options", "field", "explanation"),
    [
        ({"temperature": 2.1}, "temperature", "expected a number from 0 to 2, got 2.1"),
        ({"temperature": -0.5}, "temperature", "expected a number from 0 to 2, got -0.5"),
        ({"temperature": math.nan}, "temperature", "expected a finite number, got nan"),
        ({"min_p": math.inf}, "min_p", "expected a finite number, got inf"),
        ({"logit_bias": {5: math.nan}}, "logit_bias[5]", "expected a finite number, got nan"),
        ({"top_k": -2}, "top_k", "expected an integer of at least -1, got -2"),
        ({"n": 0}, "n", "expected an integer from 1 to 128, got 0"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "expected an integer of at least 1, got 0"),
        ({"stop": ["a"] * 17}, "stop", "expected at most 16 elements, got 17"),
    ],
)
def test_names_a_value_out_of_bounds(options: dict[str, Any], field: str, explanation: str) -> None:
    path = f"generation.{field}"
    expected = Violation(field=path, message=f"'{path}': {explanation}", code="invalid_value")
    assert violations(request(**options)) == [expected]


@pytest.mark.parametrize("priority", [-101, 101])
def test_priority_is_bounded(priority: int) -> None:
    message = request()
    message.priority = priority
    explanation = f"'priority': expected an integer from -100 to 100, got {priority}"
    assert violations(message) == [Violation(field="priority", message=explanation, code="invalid_value")]


def test_names_a_missing_required_field() -> None:
    missing = chat_pb2.CreateChatCompletionRequest(messages=[content_pb2.Message()])
    assert violations(missing) == [
        Violation(
            field="messages[0].role",
            message="'messages[0].role': required, but missing",
            code="missing_value",
        )
    ]
    assert [violation.field for violation in violations(chat_pb2.CreateChatCompletionRequest())] == ["messages"]
    assert [violation.field for violation in violations(model_pb2.GetModelRequest())] == ["model"]


@pytest.mark.parametrize(
    ("message", "explanation"),
    [
        (
            chat_pb2.CreateChatCompletionRequest(messages=[]),
            "'messages': required, but missing or empty; send at least one element",
        ),
        (model_pb2.GetModelRequest(model=""), "'model': required, but missing or empty; send at least one character"),
        (
            anthropic_pb2.ThinkingBudget(budget_tokens=0),
            "'budget_tokens': required, but missing or 0; send another number",
        ),
        (
            anthropic_pb2.CreateMessageRequest(max_tokens=1),
            "'messages': required, but missing or empty; send at least one element",
        ),
        (content_pb2.Message(), "'role': required, but missing"),
    ],
)
def test_what_a_message_cannot_tell_from_nothing_is_said(message: Message, explanation: str) -> None:
    assert [violation.message for violation in violations(message)] == [explanation]


def test_reports_all_violations() -> None:
    message = request(n=0, top_p=5)
    part = message.messages[0].content.add()
    part.image.min_pixels = 0
    part.image.source.url = "u"
    assert [violation.field for violation in violations(message)] == [
        "messages[0].content[0].image.min_pixels", "generation.top_p", "generation.n",
    ]  # fmt: skip
