"""Answers as messages of a type that the request describes, from a model with random weights."""

import json
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, completion_pb2, completion_pb2_grpc, generation_pb2
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS
from tests.protos.compiled import FILES, file_descriptor_set, message_class, type_names
from tests.server.requests import post_json, request, user

Chat = chat_pb2_grpc.ChatServiceStub
ENDING = {len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>"): 40.0}
CLOSING = {PLAIN_TOKENS.index(character): 4.0 for character in '"}]'}
"""Tokens that end texts, lists and messages are made likelier, so that answers end."""
SEEDS = 5


def asking(name: str, **generation: Any) -> chat_pb2.CreateChatCompletionRequest:
    options = {"temperature": 1.0, "seed": 1, "max_completion_tokens": 400, "logit_bias": CLOSING | ENDING}
    wire = request(user("the other"), **{**options, **generation})
    wire.response_format.protobuf.name = f"answers.v1.{name}"
    wire.response_format.protobuf.file_descriptor_set = file_descriptor_set(*FILES)
    return wire


def test_every_complete_answer_is_a_message(channel: grpc.Channel) -> None:
    names = [name.rpartition(".")[2] for name in type_names()]
    assert len(names) >= 40
    calls = {name: Chat(channel).CreateChatCompletion.future(asking(name, n=SEEDS)) for name in names}
    num_cut = 0
    for name, call in calls.items():
        for choice in call.result().choices:
            if choice.finish_reason == generation_pb2.FINISH_REASON_LENGTH:
                num_cut += 1
                assert choice.answer_error.startswith("The answer is cut")
                continue
            answer, same = message_class(name)(), message_class(name)()
            assert choice.answer.Unpack(answer), (name, choice.message.content, choice.answer_error)
            assert answer == json_format.ParseDict(json.loads(choice.message.content), same)
    assert num_cut <= 0.05 * SEEDS * len(names)


def test_the_message_comes_with_the_last_chunk(channel: grpc.Channel) -> None:
    wire = asking("Scene", n=2)
    whole = Chat(channel).CreateChatCompletion(wire)
    ends: dict[int, Any] = {}
    for chunk in Chat(channel).StreamChatCompletion(wire):
        for choice in chunk.choices:
            assert choice.index not in ends
            assert choice.HasField("finish_reason") == (choice.WhichOneof("typed_answer") is not None)
            if choice.HasField("finish_reason"):
                ends[choice.index] = choice.answer
    assert [ends[choice.index] for choice in whole.choices] == [choice.answer for choice in whole.choices]
    assert all(each.TypeName() == "answers.v1.Scene" for each in ends.values())


def test_an_answer_that_is_cut_is_no_message(channel: grpc.Channel) -> None:
    (choice,) = Chat(channel).CreateChatCompletion(asking("Scene", max_completion_tokens=3)).choices
    assert choice.WhichOneof("typed_answer") == "answer_error"
    assert (
        choice.answer_error == "The answer is cut: it reached max_completion_tokens, or the end of the context window."
    )
    (choice,) = Chat(channel).CreateChatCompletion(asking("Scene", stop=["things"])).choices
    assert choice.answer_error.startswith("The text is not the JSON of a answers.v1.Scene: ")


def test_over_rest_the_content_is_the_message(channel: grpc.Channel) -> None:
    wire = asking("Point")
    typed = Chat(channel).CreateChatCompletion(wire).choices[0]
    body = {
        "messages": [{"role": "user", "content": "the other"}],
        "response_format": {
            "type": "protobuf",
            "protobuf": {
                "name": "answers.v1.Point",
                "file_descriptor_set": json_format.MessageToDict(wire.response_format.protobuf)["fileDescriptorSet"],
            },
        },
        "temperature": 1.0,
        "seed": 1,
        "max_completion_tokens": 400,
        "logit_bias": {str(key): value for key, value in (CLOSING | ENDING).items()},
    }
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    (choice,) = post_json(stub.CreateChatCompletion, body)["choices"]
    assert choice["message"]["content"] == typed.message.content
    assert not {"answer", "answer_error"} & set(choice)
    point = message_class("Point")()
    assert typed.answer.Unpack(point)
    assert json.loads(choice["message"]["content"]) == {"x": point.x, "y": point.y}


def test_with_tools_the_model_answers_or_calls(channel: grpc.Channel) -> None:
    beginning = {PLAIN_TOKENS.index("{"): 40.0}  # else it calls
    wire = asking("Point", n=4, logit_bias=CLOSING | ENDING | beginning)
    wire.tools.add().function.name = "look"
    found = Chat(channel).CreateChatCompletion(wire).choices
    assert all(choice.answer.Unpack(message_class("Point")()) for choice in found)
    wire = asking("Point", n=4)
    wire.tools.add().function.name = "look"
    wire.tool_choice.mode = chat_pb2.TOOL_CHOICE_MODE_REQUIRED
    for choice in Chat(channel).CreateChatCompletion(wire).choices:
        assert choice.message.tool_calls
        assert choice.WhichOneof("typed_answer") is None


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"name": "answers.v1.Point"}, "file_descriptor_set", "required, but missing"),
        ({"file_descriptor_set": b"\x0a\x00"}, "name", "required, but missing"),
        ({"name": "a", "file_descriptor_set": bytes(300_000)}, "file_descriptor_set", "at most 262144 bytes"),
        ({"name": "a", "file_descriptor_set": b"\xff"}, "", "FileDescriptorSet, got other bytes"),
        ({"name": "answers.v1.Pont", "file_descriptor_set": file_descriptor_set(*FILES)}, "", "did you mean"),
    ],
)
def test_wrong_types_are_refused(channel: grpc.Channel, given: dict[str, Any], field: str, words: str) -> None:
    wire = request(user("Hello"))
    wire.response_format.protobuf.CopyFrom(chat_pb2.MessageType(**given))
    with pytest.raises(grpc.RpcError) as caught:
        Chat(channel).CreateChatCompletion(wire)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"'response_format.protobuf{field and '.'}{field}': ")
    assert words in error.details()


def test_completions_of_texts_are_no_messages(channel: grpc.Channel) -> None:
    wire = completion_pb2.CreateCompletionRequest(
        prompts=[completion_pb2.Prompt(text="the")], response_format=asking("Point").response_format
    )
    with pytest.raises(grpc.RpcError) as caught:
        completion_pb2_grpc.CompletionServiceStub(channel).CreateCompletion(wire)
    error: Any = caught.value
    assert error.details() == "'response_format.protobuf': only chat completions are answered with messages"
