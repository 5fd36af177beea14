"""LoRA adapters in every API: chosen by `model`, listed beside the model, and apart in the prefix cache."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from glimpse.v1 import chat_pb2, chat_pb2_grpc, model_pb2, model_pb2_grpc
from tests.e2e.stack import Stack
from tests.server.requests import request, user
from tests.server.services.error_details import refusal

TEXT = "Where is the red circle, and where is the green square? " * 8


def typed(model: str, text: str = TEXT) -> chat_pb2.CreateChatCompletionRequest:
    wire = request(user(text), max_completion_tokens=12)
    wire.model = model
    return wire


def test_adapters_are_listed_with_their_parent(client: OpenAI, stack: Stack) -> None:
    listed: dict[str, Any] = {model.id: model for model in client.models.list()}
    assert list(listed) == ["nano", "tuned"]
    assert listed["tuned"].parent == "nano"
    assert not hasattr(listed["nano"], "parent")
    with stack.channel() as channel:
        answer = model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest(model="tuned"))
    assert answer.model.parent == "nano"


def test_every_api_chooses_an_adapter_by_its_name(client: OpenAI, stack: Stack) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0}
    completions = {
        model: client.chat.completions.create(model=model, max_completion_tokens=12, **asked)
        for model in ("nano", "tuned")
    }
    assert completions["nano"].system_fingerprint != completions["tuned"].system_fingerprint
    answers = {model: completion.choices[0].message.content for model, completion in completions.items()}
    assert answers["nano"] != answers["tuned"]
    response = client.responses.create(model="tuned", input=TEXT, temperature=0, max_output_tokens=12)
    message = stack.post("/v1/messages", {"model": "tuned", "max_tokens": 12, **asked})
    assert response.output_text == message["content"][0]["text"] == answers["tuned"]
    assert (response.model, message["model"]) == ("tuned", "tuned")
    with stack.channel() as channel:
        for model, text in answers.items():
            completion = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(typed(model))
            assert (completion.model, completion.choices[0].message.content) == (model, text)
    vectors = [client.embeddings.create(model=model, input=TEXT).data[0].embedding for model in answers]
    assert vectors[0] != vectors[1]


def test_quotes_know_of_the_prefixes_of_their_adapter_alone(stack: Stack) -> None:
    text = "Quoted: " + TEXT
    with stack.channel() as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        chat.CreateChatCompletion(typed("tuned", text))
        cached = {
            model: chat.CountTokens(
                chat_pb2.CountTokensRequest(model=model, messages=[user(text)], quote=True)
            ).prompt_tokens_details.cached_tokens
            for model in ("nano", "tuned")
        }
    assert cached["nano"] == 0
    assert cached["tuned"] > 0


def test_an_unknown_name_is_an_unknown_model(client: OpenAI, stack: Stack) -> None:
    message = "The model 'other' does not exist. Available: 'nano', 'tuned'."
    with pytest.raises(NotFoundError, match=message):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "Hello"}])
    with stack.channel() as channel:
        chat = chat_pb2_grpc.ChatServiceStub(channel)
        assert refusal(lambda: chat.CreateChatCompletion(typed("other"))) == (grpc.StatusCode.NOT_FOUND, message)


def test_an_adapter_is_loaded_replaced_and_unloaded_as_in_vllm(
    client: OpenAI, stack: Stack, local_adapters: Path
) -> None:
    def answer(model: str) -> str | None:
        asked: Any = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_completion_tokens": 12}
        return client.chat.completions.create(model=model, **asked).choices[0].message.content

    def post(path: str, body: dict[str, Any]) -> Any:
        return client.post(path, body=body, cast_to=object)

    folder = local_adapters / "later"
    shutil.copytree(local_adapters / "tuned", folder)
    loaded = post("/load_lora_adapter", {"lora_name": "later", "lora_path": str(folder)})
    assert (loaded["id"], loaded["object"], loaded["parent"]) == ("later", "model", "nano")
    assert [model.id for model in client.models.list()] == ["nano", "tuned", "later"]
    assert answer("later") == answer("tuned") != answer("nano")
    with pytest.raises(BadRequestError, match="'lora_name': expected a name without an adapter, got 'later'"):
        post("/load_lora_adapter", {"lora_name": "later", "lora_path": "later"})
    config = json.loads((folder / "adapter_config.json").read_bytes())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 0}))
    post("/load_lora_adapter", {"lora_name": "later", "lora_path": "later", "load_inplace": True})
    assert answer("later") == answer("nano")
    with stack.channel() as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        refused = {
            "'lora_path': adapter 'x': expected a folder below --allowed-lora-path": ("x", "/etc"),
            "'lora_path': adapter 'y': expected a folder below --allowed-lora-path": ("y", "../adapters"),
            "'lora_name': expected a name that the model does not have, got 'nano'": ("nano", "later"),
            "'lora_name': expected at most 256 printable characters": ("a\nb", "later"),
        }
        for message, (name, path) in refused.items():
            load = partial(models.LoadAdapter, model_pb2.LoadAdapterRequest(lora_name=name, lora_path=path))
            assert refusal(load) == (grpc.StatusCode.INVALID_ARGUMENT, message)
        assert stack.post("/glimpse/v1/adapters:unload", {"loraName": "later"}) == {"id": "later", "deleted": True}
    with pytest.raises(NotFoundError, match="The model 'later' does not exist"):
        answer("later")
    with pytest.raises(NotFoundError, match="'later' does not exist"):
        post("/unload_lora_adapter", {"lora_name": "later"})


def test_of_several_that_load_one_name_at_once_one_succeeds_and_the_others_hear_which_field_is_wrong(
    stack: Stack, local_adapters: Path
) -> None:
    wire = model_pb2.LoadAdapterRequest(lora_name="once", lora_path=str(local_adapters / "tuned"))
    with stack.channel() as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        calls: list[Any] = [models.LoadAdapter.future(wire) for _ in range(6)]
        models.UnloadAdapter(model_pb2.UnloadAdapterRequest(lora_name=min(calls, key=failed).result().model.id))
    message = "'lora_name': expected a name without an adapter, got 'once'; load_inplace replaces that"
    assert [call.details() for call in calls if failed(call)] == [message] * 5


def failed(call: Any) -> bool:
    return call.code() is not grpc.StatusCode.OK
