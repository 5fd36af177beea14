"""Tools, for a model whose published chat template ignores them: calls are made over gRPC and OpenAI's API alike."""

import json
from typing import Any

import grpc

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2, model_pb2, model_pb2_grpc
from tests.server.requests import post_json, request, text_part, user

SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": [1, 2, 3]}},
    "required": ["at"],
    "additionalProperties": False,
}
TOOL = chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name="look", parameters=json.dumps(SCHEMA), strict=True))
REQUIRED = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_REQUIRED)


def asking(*messages: content_pb2.Message) -> chat_pb2.CreateChatCompletionRequest:
    wire = request(*(messages or [user("the other")]), max_completion_tokens=100)
    wire.MergeFrom(chat_pb2.CreateChatCompletionRequest(tools=[TOOL], tool_choice=REQUIRED, parallel_tool_calls=False))
    return wire


def test_calls_a_tool_and_reads_its_result(chat: chat_pb2_grpc.ChatServiceStub) -> None:
    whole = chat.CreateChatCompletion(asking())
    (choice,) = whole.choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, choice.finish_reason) == ("look", generation_pb2.FINISH_REASON_TOOL_CALLS)
    assert json.loads(call.function.arguments)["at"] in (1, 2, 3)
    without = chat.CreateChatCompletion(request(user("the other")))
    assert whole.usage.prompt_tokens > without.usage.prompt_tokens + 20, "the model sees the tool"
    result = content_pb2.Message(role=content_pb2.ROLE_TOOL, tool_call_id=call.id, content=[text_part("A tree.")])
    made = content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, tool_calls=[call])
    assert chat.CreateChatCompletion(request(user("the other"), made, result)).choices[0].message.content


def test_a_function_without_parameters_is_called_without_arguments(chat: chat_pb2_grpc.ChatServiceStub) -> None:
    wire = asking()
    wire.tools[0].function.CopyFrom(chat_pb2.FunctionDefinition(name="look"))
    wire.generation.MergeFrom(generation_pb2.GenerationOptions(temperature=2, n=8, seed=1))
    for choice in chat.CreateChatCompletion(wire).choices:
        (call,) = choice.message.tool_calls
        assert json.loads(call.function.arguments) == {}


def test_openai_s_api_and_streams_make_the_same_call(
    channel: grpc.Channel, chat: chat_pb2_grpc.ChatServiceStub
) -> None:
    (call,) = chat.CreateChatCompletion(asking()).choices[0].message.tool_calls
    deltas = [each for chunk in chat.StreamChatCompletion(asking()) for each in chunk.choices[0].delta.tool_calls]
    assert "".join(each.function.arguments for each in deltas) == call.function.arguments
    body = {
        "messages": [{"role": "user", "content": "the other"}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_tokens": 100,
    }
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    (posted,) = post_json(openai.CreateChatCompletion, body)["choices"][0]["message"]["tool_calls"]
    assert posted["function"] == {"name": "look", "arguments": call.function.arguments}


def test_model_description_says_that_it_calls_tools(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert all(model.capabilities.tools for model in listed.data)
