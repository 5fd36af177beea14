"""A server whose chat template opens the reasoning in the prompt, with a real engine: budgets and constraints hold."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from anthropic.types import ModelInfo
from anthropic.types import Usage as MessageUsage

from glimpse.anthropic.v1 import anthropic_pb2_grpc, catalog_pb2
from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2, model_pb2, model_pb2_grpc
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.text import make_text_checkpoint
from tests.server.dialects.responses_client import EVENT, RESPONSE, document_of, joined
from tests.server.requests import json_bodies, post_json, request, text_part, user
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub
BUDGET = 7
TEMPLATE = CHAT_TEMPLATE.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
END = "{# the reasoning ends with </think> #}"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    checkpoint = make_text_checkpoint(tmp_path_factory.mktemp("checkpoints") / "thinking", "qwen3")
    folder = tmp_path_factory.mktemp("thinking")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE + END)
    with served(checkpoint, folder, f"--chat-template={template}") as server, server.channel() as opened:
        yield opened


def thinking(*, budget: int = BUDGET, **members: Any) -> chat_pb2.CreateChatCompletionRequest:
    wire = request(user("the other one"), temperature=1.0, seed=3, max_completion_tokens=60)
    wire.MergeFrom(chat_pb2.CreateChatCompletionRequest(thinking_token_budget=budget, **members))
    return wire


def test_budget_and_constraint_hold_in_both_kinds_of_answers(channel: grpc.Channel) -> None:
    wire = thinking(structured_outputs=generation_pb2.StructuredOutputs(regex="[a-c]{3}"))
    whole = Chat(channel).CreateChatCompletion(wire)
    message = whole.choices[0].message
    assert re.fullmatch("[a-c]{3}", message.content)
    assert whole.usage.completion_tokens_details.reasoning_tokens in range(BUDGET, BUDGET + 4)  # a character is whole
    wire.stream_options.include_usage = True
    *chunks, last = Chat(channel).StreamChatCompletion(wire)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.reasoning for delta in deltas) == message.reasoning
    assert "".join(delta.content for delta in deltas) == message.content
    assert last.usage.completion_tokens_details == whole.usage.completion_tokens_details


def test_openai_s_api_has_the_same_answer(channel: grpc.Channel) -> None:
    wire = thinking()
    typed = Chat(channel).CreateChatCompletion(wire).choices[0].message
    body = {
        "messages": [{"role": "user", "content": "the other one"}],
        "seed": 3,
        "max_tokens": 60,
        "thinking_token_budget": BUDGET,
    }
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    posted = post_json(openai.CreateChatCompletion, body)
    assert posted["choices"][0]["message"].get("reasoning", "") == typed.reasoning
    assert posted["choices"][0]["message"]["content"] == typed.content
    assert posted["usage"]["completion_tokens_details"] == {
        "reasoning_tokens": BUDGET,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


def test_messages_have_the_same_thinking(channel: grpc.Channel) -> None:
    wire = request(user("the other one"), max_completion_tokens=60)
    wire.thinking_token_budget = BUDGET
    whole = Chat(channel).CreateChatCompletion(wire)
    typed, num_tokens = whole.choices[0].message, whole.usage.completion_tokens_details.reasoning_tokens
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "the other one"}],
        "max_tokens": 60,
        "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
    }
    stub: Any = anthropic_pb2_grpc.AnthropicServiceStub(channel)

    def content(body: Any) -> Any:
        return post_json(stub.CreateMessage, body)["content"]

    usage = MessageUsage.model_validate(post_json(stub.CreateMessage, asked)["usage"], strict=True)
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == num_tokens > 0

    signature = base64.b64encode(hashlib.sha256(typed.reasoning.encode()).digest()).decode()
    thought = {"type": "thinking", "thinking": typed.reasoning, "signature": signature}
    assert content(asked) == [thought, {"type": "text", "text": typed.content}]
    asked["thinking"] |= {"display": "omitted"}
    hidden = thought | {"thinking": ""}
    assert content(asked) == [hidden, {"type": "text", "text": typed.content}]
    question = asked["messages"]
    for thinking in (thought, hidden):
        again = {"role": "assistant", "content": [thinking, {"type": "text", "text": "a"}]}
        asked["messages"] = [*question, again, {"role": "user", "content": "b"}]
        assert content(asked)


def test_anthropic_s_clients_hear_what_a_model_that_reasons_can(channel: grpc.Channel) -> None:
    stub = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    listed = json.loads(stub.ListModelInfos(catalog_pb2.ListModelInfosRequest()).data)["data"]
    (found,) = (ModelInfo.model_validate(each, strict=False).capabilities for each in listed)
    assert found is not None
    assert (found.thinking.supported, found.thinking.types.enabled.supported) == (True, True)
    assert not found.thinking.types.disabled.supported, "its template has no switch"
    assert not found.image_input.supported
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "thinking": {"type": "disabled"}}
    with pytest.raises(grpc.RpcError, match="'thinking': the model's chat template cannot turn off its reasoning"):
        post_json(stub.CreateMessage, body)


def test_responses_have_the_same_reasoning(channel: grpc.Channel) -> None:
    wire = request(user("the other one"), max_completion_tokens=60)
    typed = Chat(channel).CreateChatCompletion(wire)
    message = typed.choices[0].message
    assert message.reasoning
    asked: dict[str, Any] = {"input": "the other one", "max_output_tokens": 60, "temperature": 0}
    stub: Any = openai_pb2_grpc.OpenAIServiceStub(channel)

    def post(body: Any) -> bytes:
        return b"".join(piece.data for piece in stub.CreateResponse(json_bodies(body)))

    found = document_of(RESPONSE, post(asked))
    thought, *rest = found["output"]
    assert [part["text"] for part in thought["content"]] == [message.reasoning]
    assert [part["text"] for item in rest for part in item["content"]] == [message.content] * len(rest)
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == (
        typed.usage.completion_tokens_details.reasoning_tokens
    )
    events = (event.partition(b"\ndata: ")[2] for event in post(asked | {"stream": True}).split(b"\n\n") if event)
    streamed = joined([document_of(EVENT, event) for event in events])
    assert [item.get("content") for item in streamed["output"]] == [item.get("content") for item in found["output"]]
    question = {"role": "user", "content": "the other one"}
    again = {"role": "assistant", "content": "a"}
    items = [question, thought, again, {"role": "user", "content": "b"}]
    earlier = content_pb2.Message(
        role=content_pb2.ROLE_ASSISTANT, content=[text_part("a")], reasoning=message.reasoning
    )
    same = Chat(channel).CreateChatCompletion(request(user("the other one"), earlier, user("b")))
    assert document_of(RESPONSE, post(asked | {"input": items}))["usage"]["input_tokens"] == same.usage.prompt_tokens


def test_a_budget_of_nothing_ends_the_reasoning_at_once(channel: grpc.Channel) -> None:
    whole = Chat(channel).CreateChatCompletion(thinking(budget=0))
    assert whole.choices[0].message.reasoning == ""
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens_details.reasoning_tokens == 0


def test_an_answer_that_is_cut_in_its_reasoning_has_no_content(channel: grpc.Channel) -> None:
    wire = request(user("the other one"), temperature=1.0, seed=3, max_completion_tokens=5)
    message = Chat(channel).CreateChatCompletion(wire).choices[0].message
    assert not message.HasField("content")


def test_a_continued_message_is_text(channel: grpc.Channel) -> None:
    wire = request(
        user("the other one"),
        content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=[text_part("Yes, the")]),
        max_completion_tokens=5,
    )
    wire.continue_final_message = True
    message = Chat(channel).CreateChatCompletion(wire).choices[0].message
    assert not message.HasField("reasoning")
    assert message.content


def test_model_description_says_that_it_reasons(channel: grpc.Channel) -> None:
    models: Any = model_pb2_grpc.ModelServiceStub(channel)
    (model,) = models.ListModels(model_pb2.ListModelsRequest()).data
    assert model.capabilities.reasoning
