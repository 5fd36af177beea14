"""Bounds of requests for embeddings that depend on the model and on the form of the response."""

from dataclasses import replace
from typing import Any

import pytest

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.pooling import check_response_size, parse_embedding_request
from glimpse.server.request import EmbeddingRequest, TextPrompt
from glimpse.v1 import embedding_pb2
from tests.server.parse.served import MODEL


def parse(num_inputs: int = 1, **fields: Any) -> EmbeddingRequest:
    inputs = [embedding_pb2.EmbeddingInput(text="a")] * num_inputs
    return parse_embedding_request(embedding_pb2.CreateEmbeddingsRequest(inputs=inputs, **fields), CallContext(), MODEL)


def test_the_checkpoint_s_pooling_is_the_default() -> None:
    assert parse().pooling == MODEL.pooling
    set_all = parse(pooling=embedding_pb2.POOLING_LAST_TOKEN, normalize=True, dimensions=7)
    assert set_all.pooling == PoolingParams(mode=PoolingMode.LAST_TOKEN, normalize=True, dimensions=7)


def test_tokens_with_a_vector_each_are_bounded_by_the_response() -> None:
    late = replace(parse(dimensions=128), pooling=PoolingParams(mode=PoolingMode.TOKEN, dimensions=128))
    assert check_response_size(late, MODEL, is_json=False).max_tokens == 131072
    assert check_response_size(parse(), MODEL, is_json=False).max_tokens is None


def test_texts_get_special_tokens_unless_the_request_says_otherwise() -> None:
    def adds(**fields: Any) -> bool | None:
        (each,) = parse(**fields).inputs
        assert isinstance(each.source, TextPrompt)
        return each.source.add_special_tokens

    assert (adds(), adds(add_special_tokens=True), adds(add_special_tokens=False)) == (True, True, False)


@pytest.mark.parametrize(
    ("is_json", "fields", "most"),
    [
        (False, {}, 2048),
        (True, {}, 682),
        (True, {"dimensions": 1024}, 2048),
        (True, {"encoding_format": embedding_pb2.ENCODING_FORMAT_BASE64}, 2048),
    ],
)
def test_refuses_more_embeddings_than_a_response_can_have(is_json: bool, fields: dict[str, Any], most: int) -> None:
    check_response_size(parse(most, **fields), MODEL, is_json=is_json)
    if most < 2048:
        with pytest.raises(InvalidRequest, match=f"expected at most {most} inputs of 4096 values") as refusal:
            check_response_size(parse(most + 1, **fields), MODEL, is_json=is_json)
        assert refusal.value.field == "inputs"
