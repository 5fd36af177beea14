"""A server with Gemma 4: media over the typed API and over OpenAI's, and from the prefix cache; tools; reasoning."""

import json
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.checkpoints.gemma4 import make_gemma4_checkpoint
from tests.e2e.stack import Stack
from tests.server.families.both_apis import check_both_apis
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, post_json, request, text_part, user

CHECKPOINT = make_gemma4_checkpoint
ARCHITECTURES = ("Gemma4ForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub


def test_typed_and_openai_apis_return_the_same_completion_also_from_the_prefix_cache(channel: grpc.Channel) -> None:
    # 4 rows of 14 tokens and 13 of 5, each image with two marks.
    details = check_both_apis(channel, "the thing in an " * 8)
    assert details["image_tokens"] == 4 * 14 + 13 * 5 + 4
    assert details["cached_tokens"] > 0


@pytest.mark.parametrize("effort", [chat_pb2.REASONING_EFFORT_NONE, chat_pb2.REASONING_EFFORT_HIGH])
def test_calls_a_tool_and_answers_with_its_result(channel: grpc.Channel, effort: chat_pb2.ReasoningEffort) -> None:
    places = {"type": "array", "items": {"enum": ["the", 5]}, "minItems": 1, "maxItems": 2}
    schema = {"type": "object", "properties": {"at": places}, "required": ["at"]}
    tool = chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name="look", parameters=json.dumps(schema)))
    wire = request(user("the thing in an " * 8), max_completion_tokens=64)
    wire.tools.append(tool)
    wire.tool_choice.mode = chat_pb2.TOOL_CHOICE_MODE_REQUIRED
    wire.parallel_tool_calls = False
    wire.reasoning_effort = effort
    (choice,) = Chat(channel).CreateChatCompletion(wire).choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == generation_pb2.FINISH_REASON_TOOL_CALLS
    assert call.function.name == "look"
    jsonschema.validate(json.loads(call.function.arguments), schema)
    wire.messages.add(role=content_pb2.ROLE_ASSISTANT, tool_calls=[call])
    wire.messages.add(role=content_pb2.ROLE_TOOL, tool_call_id=call.id, content=[text_part("an end")])
    wire.tool_choice.mode = chat_pb2.TOOL_CHOICE_MODE_AUTO
    answer = Chat(channel).CreateChatCompletion(wire)
    assert answer.usage.completion_tokens > 0
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


def test_an_effort_turns_on_the_reasoning(channel: grpc.Channel) -> None:
    efforts = ({}, {"reasoning_effort": "none"}, {"reasoning_effort": "low"}, {"reasoning_effort": "high"})
    answers = [ask_in_json(channel, {"type": "text", "text": "the thing"}, **each) for each in efforts]
    default, off, *on = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert off == default
    assert on[0] == on[1] > default
    body = {"messages": [{"role": "user", "content": "the thing"}], "max_tokens": 2}
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    for thinking, expected in (({}, off), ({"thinking": {"type": "enabled", "budget_tokens": 1}}, on[0])):
        usage = post_json(stub.CreateMessage, body | thinking)["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image", "video", "audio")
