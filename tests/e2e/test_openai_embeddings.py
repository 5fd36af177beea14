"""POST /v1/embeddings through Envoy, from OpenAI's client and plain HTTP: as transformers computes them."""

import base64
import struct
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from PIL import Image

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.v1 import embedding_pb2, embedding_pb2_grpc
from tests.e2e.images import data_url
from tests.e2e.requests import EMBEDDINGS, ask
from tests.e2e.stack import Stack
from tests.oracles.pooling import image_states, pooled, text_states

TEXTS = ["the sea", "A circle is red, and a square is blue. " * 30, "one"]
PIXELS = np.random.default_rng(0).integers(0, 256, (112, 140, 3), dtype=np.uint8)
"""Pixels of a size that the model does not resize."""
IMAGE_TOKEN_ID = 1650


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def about_the_image() -> list[dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": data_url(Image.fromarray(PIXELS))}}
    return [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}]


@pytest.fixture(scope="module")
def references(stack: Stack) -> list[np.ndarray]:
    """The embeddings of `TEXTS`, computed by transformers in float32."""
    tokens = [ask(stack, "/tokenize", prompt=text).body["tokens"] for text in TEXTS]
    return [pooled(text_states(DEFAULT_MODEL, each), PoolingParams()) for each in tokens]


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
def test_openai_s_client_gets_the_reference(
    client: OpenAI, references: list[np.ndarray], encoding_format: str | None
) -> None:
    options: Any = {} if encoding_format is None else {"encoding_format": encoding_format}
    response = client.embeddings.create(model="nano", input=TEXTS, **options)
    assert [each.index for each in response.data] == [0, 1, 2]
    for each, reference in zip(response.data, references, strict=True):
        values: Any = each.embedding
        if encoding_format == "base64":  # else the client decodes what it asked for
            values = np.frombuffer(base64.b64decode(values), dtype="<f4")
        assert cosine(values, reference.tolist()) > 0.9999
    assert response.usage.prompt_tokens == response.usage.total_tokens > 300


@pytest.mark.parametrize("mode", [PoolingMode.LAST_TOKEN, PoolingMode.MEAN])
def test_a_conversation_with_an_image_equals_the_reference(stack: Stack, mode: PoolingMode) -> None:
    messages = about_the_image()
    answer = ask(stack, EMBEDDINGS, messages=messages, pooling=mode.value)
    tokens = ask(stack, "/tokenize", messages=messages, add_generation_prompt=False).body["tokens"]
    reference = pooled(image_states(DEFAULT_MODEL, tokens, [PIXELS], IMAGE_TOKEN_ID), PoolingParams(mode=mode))
    (data,) = answer.body["data"]
    assert cosine(data["embedding"], reference.tolist()) > 0.9999
    assert answer.body["usage"]["prompt_tokens_details"]["image_tokens"] == 20


def test_inputs_may_be_texts_tokens_and_conversations(stack: Stack) -> None:
    tokens = ask(stack, "/tokenize", prompt="the sea").body["tokens"]
    by_text, by_tokens, nested, mixed = (
        ask(stack, EMBEDDINGS, input=given).body["data"]
        for given in ("the sea", tokens, [tokens], ["the sea", {"messages": about_the_image()}])
    )
    assert by_text == by_tokens == nested == mixed[:1]
    (alone,) = ask(stack, EMBEDDINGS, messages=about_the_image()).body["data"]
    assert cosine(mixed[1]["embedding"], alone["embedding"]) > 0.9999


def test_grpc_has_the_same_values(stack: Stack) -> None:
    answer = ask(stack, EMBEDDINGS, input="the sea", dimensions=8).body
    with grpc.insecure_channel(f"127.0.0.1:{stack.http_port}") as channel:
        stub = embedding_pb2_grpc.EmbeddingServiceStub(channel)
        request = embedding_pb2.CreateEmbeddingsRequest(inputs=[{"text": "the sea"}], dimensions=8)
        typed = stub.CreateEmbeddings(request)
    assert list(struct.unpack("<8f", typed.data[0].values)) == answer["data"][0]["embedding"]
    assert (answer["object"], answer["data"][0]["object"], answer["model"]) == ("list", "embedding", typed.model)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], [10**6]]}, "input[1][0]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": "a<|image_pad|>"}, "input[0]"),
        ({"input": "word " * 9000}, "input[0]"),
        ({"input": [{"messages": [{"role": "user", "content": []}]}]}, "input[0].messages[0].content"),
        ({"input": {"messages": [], "tools": []}}, "input.tools"),
        ({"input": "a", "dimensions": 257}, "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "dimensions"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
    ],
)
def test_refuses_invalid_input_by_field(stack: Stack, members: dict[str, Any], param: str) -> None:
    answer = ask(stack, EMBEDDINGS, **members)
    assert (answer.status, answer.param) == (400, param), answer.text
    assert f"'{param}'" in answer.body["error"]["message"]


def test_openai_s_client_raises_for_invalid_input(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as failure:
        client.embeddings.create(model="nano", input="a", dimensions=1000)
    assert (failure.value.param, failure.value.code) == ("dimensions", "invalid_value")
