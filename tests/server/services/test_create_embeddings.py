"""EmbeddingService over gRPC: embeddings equal transformers' hidden states, and errors name their fields."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import PIL.Image
import pytest

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.v1 import (
    chat_pb2_grpc,
    completion_pb2,
    content_pb2,
    embedding_pb2,
    embedding_pb2_grpc,
    generation_pb2,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from tests.e2e.stack import Served
from tests.media.images import encode
from tests.oracles.pooling import image_states, pooled, text_states
from tests.server.requests import image_part, request, user
from tests.server.services.error_details import details
from tests.waiting import eventually

Request = embedding_pb2.CreateEmbeddingsRequest
Input = embedding_pb2.EmbeddingInput
TOLERANCE = 1e-5
IMAGE_TOKEN_ID = 277
PIXELS = np.random.default_rng(0).integers(0, 256, (84, 112, 3), dtype=np.uint8)


def text(words: str) -> Input:
    return Input(text=words)


def token_ids(*ids: int) -> Input:
    return Input(token_ids=completion_pb2.TokenIds(ids=ids))


def conversation(*messages: content_pb2.Message) -> Input:
    return Input(conversation=embedding_pb2.EmbeddingConversation(messages=messages))


def about_the_image(words: str = "the sea") -> content_pb2.Message:
    return user(image_part(encode(PIL.Image.fromarray(PIXELS), "PNG")), words)


def vectors(response: embedding_pb2.CreateEmbeddingsResponse) -> list[np.ndarray]:
    assert [each.index for each in response.data] == list(range(len(response.data)))
    return [np.frombuffer(each.values, dtype="<f4") for each in response.data]


def assert_equal(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


@pytest.fixture
def stub(channel: grpc.Channel) -> embedding_pb2_grpc.EmbeddingServiceStub:
    return embedding_pb2_grpc.EmbeddingServiceStub(channel)


@pytest.fixture
def tokenizer(channel: grpc.Channel) -> tokenizer_pb2_grpc.TokenizerServiceStub:
    return tokenizer_pb2_grpc.TokenizerServiceStub(channel)


@pytest.mark.parametrize("mode", [PoolingMode.LAST_TOKEN, PoolingMode.MEAN])
def test_inputs_of_all_forms_equal_the_reference(
    stub: embedding_pb2_grpc.EmbeddingServiceStub,
    tokenizer: tokenizer_pb2_grpc.TokenizerServiceStub,
    tiny_checkpoint: Path,
    mode: PoolingMode,
) -> None:
    inputs = [text("the sea " * 60), token_ids(5, 6, 7), conversation(about_the_image()), text("a")]
    pooling = {PoolingMode.LAST_TOKEN: embedding_pb2.POOLING_LAST_TOKEN, PoolingMode.MEAN: embedding_pb2.POOLING_MEAN}
    ours = vectors(stub.CreateEmbeddings(Request(inputs=inputs, pooling=pooling[mode])))
    long, short = (
        tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(prompt=each.text)).tokens for each in (inputs[0], inputs[3])
    )
    messages = inputs[2].conversation.messages
    chat = tokenizer.Tokenize(tokenizer_pb2.TokenizeRequest(messages=messages, add_generation_prompt=False)).tokens
    states = [
        *(text_states(tiny_checkpoint, ids) for ids in (long, (5, 6, 7))),
        image_states(tiny_checkpoint, chat, [PIXELS], IMAGE_TOKEN_ID),
        text_states(tiny_checkpoint, short),
    ]
    assert_equal(ours, [pooled(each, PoolingParams(mode=mode)) for each in states])


def test_messages_are_an_input_of_their_own(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    (alone,) = vectors(stub.CreateEmbeddings(Request(messages=[about_the_image()])))
    (among,) = vectors(stub.CreateEmbeddings(Request(inputs=[conversation(about_the_image())])))
    assert_equal([alone], [among])
    begun = Request(messages=[about_the_image()], add_generation_prompt=True)
    assert not np.allclose(vectors(stub.CreateEmbeddings(begun))[0], alone, atol=0.01)


def test_base64_has_the_same_values(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    plain = stub.CreateEmbeddings(Request(inputs=[text("the")]))
    encoding = embedding_pb2.ENCODING_FORMAT_BASE64
    encoded = stub.CreateEmbeddings(Request(inputs=[text("the")], encoding_format=encoding))
    assert base64.b64decode(encoded.data[0].base64) == plain.data[0].values
    assert len(plain.data[0].values) == 4 * 64


def test_cuts_and_normalizes_as_requested(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    (whole,) = vectors(stub.CreateEmbeddings(Request(inputs=[text("the")], normalize=False)))
    (cut,) = vectors(stub.CreateEmbeddings(Request(inputs=[text("the")], dimensions=16)))
    assert_equal([cut], [whole[:16] / np.linalg.norm(whole[:16])])


def test_response_reports_the_tokens_and_media_used(stub: embedding_pb2_grpc.EmbeddingServiceStub) -> None:
    request = Request(inputs=[text("the words " * 50), conversation(about_the_image("in use"))], cache_salt="used")
    first, second = stub.CreateEmbeddings(request), stub.CreateEmbeddings(request)
    usage = first.usage
    assert usage.prompt_tokens == usage.total_tokens > 12
    assert usage.completion_tokens == usage.prompt_tokens_details.cached_tokens == 0
    assert usage.prompt_tokens_details.image_tokens == 12
    assert (usage.media_usage.decoded_media, usage.media_usage.encoded_media) == (1, 1)
    assert [medium.tokens for medium in usage.media_usage.media] == [12]
    assert usage.media_usage.media[0].cache_tier == generation_pb2.MEDIA_CACHE_TIER_NONE
    assert second.usage.media_usage.media[0].cache_tier == generation_pb2.MEDIA_CACHE_TIER_ENCODER
    assert second.usage.prompt_tokens_details.cached_tokens >= 32
    assert second.usage.media_usage.decode_cache_hits == second.usage.media_usage.encoder_cache_hits == 1
    assert first.model == "tiny"
    assert first.id.startswith("embd-")


def test_many_inputs_are_embedded_beside_answers(
    stub: embedding_pb2_grpc.EmbeddingServiceStub, channel: grpc.Channel, shared_server: Served
) -> None:
    chat = chat_pb2_grpc.ChatServiceStub(channel)
    ask = request(user("What is it?"), max_completion_tokens=40)
    alone = chat.CreateChatCompletion(ask)
    before = shared_server.metric("glimpse_embeddings_total")
    inputs = [text(f"the thing {index} " * (1 + index % 9)) for index in range(200)]
    many: Any = stub.CreateEmbeddings.future(Request(inputs=inputs))  # pyright: ignore[reportFunctionMemberAccess]
    beside = chat.CreateChatCompletion(ask)
    response = many.result()
    assert beside.choices == alone.choices
    assert shared_server.metric("glimpse_embeddings_total") == before + 200
    assert_equal(vectors(response)[7:8], vectors(stub.CreateEmbeddings(Request(inputs=inputs[7:8]))))


def test_a_deadline_ends_all_inputs(stub: embedding_pb2_grpc.EmbeddingServiceStub, shared_server: Served) -> None:
    inputs = [text(f"{index} the sea " * 300) for index in range(500)]
    with pytest.raises(grpc.RpcError) as caught:
        stub.CreateEmbeddings(Request(inputs=inputs), timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    names = ("glimpse_running_sequences", "glimpse_waiting_sequences", "glimpse_kv_blocks_used")
    stub.CreateEmbeddings(Request(inputs=inputs[:1]))  # the engine reports its state after a step
    assert eventually(lambda: [shared_server.metric(name) for name in names] == [0, 0, 0])


@pytest.mark.parametrize(
    ("request_", "field", "reason"),
    [
        (Request(), "inputs", "MISSING_VALUE"),
        (Request(inputs=[text("a")], messages=[user("a")]), "inputs", "CONFLICTING_VALUES"),
        (Request(inputs=[text("a"), Input()]), "inputs[1]", "MISSING_VALUE"),
        (Request(inputs=[text("a"), text("")]), "inputs[1].text", "MISSING_VALUE"),
        (Request(inputs=[text("a")] * 2049), "inputs", "INVALID_VALUE"),
        (Request(inputs=[token_ids()]), "inputs[0].token_ids.ids", "INVALID_VALUE"),
        (Request(inputs=[token_ids(5, 384)]), "inputs[0].token_ids.ids[1]", "INVALID_VALUE"),
        (Request(inputs=[text("a"), token_ids(*[5] * 4097)]), "inputs[1].token_ids", "CONTEXT_LENGTH_EXCEEDED"),
        (Request(inputs=[text("<|image_pad|>")]), "inputs[0].text", "INVALID_VALUE"),
        (Request(inputs=[conversation()]), "inputs[0].conversation.messages", "INVALID_VALUE"),
        (
            Request(inputs=[conversation(user("a")), conversation(user("a"), user(image_part(b"?")))]),
            "inputs[1].conversation.messages[1].content[0].image.source",
            "UNSUPPORTED_MEDIA_FORMAT",
        ),
        (Request(messages=[user(image_part(b"?"))]), "messages[0].content[0].image.source", "UNSUPPORTED_MEDIA_FORMAT"),
        (Request(inputs=[text("a")], dimensions=65), "dimensions", "INVALID_VALUE"),
        (Request(inputs=[text("a")], dimensions=0), "dimensions", "INVALID_VALUE"),
        (Request(inputs=[text("a")], pooling=9), "pooling", "INVALID_VALUE"),  # pyright: ignore[reportArgumentType]
        (Request(inputs=[text("a")], encoding_format=9), "encoding_format", "INVALID_VALUE"),  # pyright: ignore[reportArgumentType]
        (Request(inputs=[text("a")], add_generation_prompt=True), "add_generation_prompt", "INVALID_VALUE"),
        (Request(messages=[user("a")], add_special_tokens=True), "add_special_tokens", "INVALID_VALUE"),
        (Request(messages=[user("a")], continue_final_message=True), "continue_final_message", "INVALID_VALUE"),
        (Request(messages=[user("a")], chat_template_kwargs="["), "chat_template_kwargs", "INVALID_VALUE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_name_the_field(
    stub: embedding_pb2_grpc.EmbeddingServiceStub, request_: Request, field: str, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.CreateEmbeddings(request_)
    info, violations = details(caught.value)
    assert (info.reason, [each.field for each in violations.field_violations]) == (reason, [field])
    assert str(caught.value.details()).startswith(f"'{field}': ")
