"""Late interaction over gRPC: vectors of tokens and scores equal transformers'; OpenAI's form is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import PIL.Image
import pytest

from glimpse import Client
from glimpse.client import GlimpseError, Image
from glimpse.openai.v1 import openai_pb2_grpc
from tests.checkpoints.colqwen2 import SIZE, make_colqwen2_checkpoint
from tests.checkpoints.paligemma import make_colpali_checkpoint
from tests.e2e.images import data_url
from tests.e2e.stack import Served
from tests.media.images import noise_pixels
from tests.oracles import late_interaction as oracle
from tests.server.requests import json_bodies
from tests.server.serving import served

ARCHITECTURES = ("ColQwen2ForRetrieval", "ColPaliForRetrieval")
QUERIES = ["the sea", "is the thing <|im_end|><eos> red?"]
PAGES = [PIL.Image.fromarray(noise_pixels(61, 93, seed=0)), PIL.Image.fromarray(noise_pixels(140, 57, seed=1))]


@pytest.fixture(scope="module", params=[make_colqwen2_checkpoint, make_colpali_checkpoint])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return request.param(tmp_path_factory.mktemp("checkpoints") / "model")


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(checkpoint, tmp_path_factory.mktemp("late")) as server:
        yield server


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(f"127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def facade(server: Served) -> Iterator[Any]:
    with server.channel() as channel:
        yield openai_pb2_grpc.OpenAIServiceStub(channel)


def test_each_token_has_a_vector(client: Client, checkpoint: Path) -> None:
    answer = client.embed([*QUERIES, *([Image(page)] for page in PAGES)])
    expected = [*oracle.queries(checkpoint, QUERIES), *oracle.documents(checkpoint, PAGES)]
    assert [each.dimensions for each in answer.response.data] == [SIZE] * 4
    for ours, (_, theirs) in zip(answer.token_vectors, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-4)
    (cut,) = client.embed(["the sea"], dimensions=8, pooling="token").token_vectors
    assert np.linalg.norm(np.asarray(cut), axis=1) == pytest.approx(1, abs=1e-6)


def test_documents_are_images_or_texts(client: Client, facade: Any, checkpoint: Path) -> None:
    (_, query), pages = oracle.queries(checkpoint, QUERIES)[0], oracle.documents(checkpoint, PAGES)
    expected = [oracle.score(checkpoint, query, page) for _, page in pages]
    documents = [[Image(page)] for page in PAGES]
    assert client.score(QUERIES[0], [*documents, "a text"]).scores[:2] == pytest.approx(expected, abs=1e-4)
    best = int(np.argmax(expected))
    (result,) = client.rerank(QUERIES[0], documents, top_n=1).results
    assert (result.index, result.HasField("document")) == (best, False)
    content = {"type": "image_url", "image_url": {"url": data_url(PAGES[1])}}
    answer = json.loads(
        facade.Rerank(json_bodies({"query": QUERIES[0], "documents": ["a", {"content": [content]}]})).data
    )
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert scores[1] == pytest.approx(expected[1], abs=1e-4)


def test_special_tokens_in_queries_are_text(client: Client) -> None:
    """Inputs to embed have special tokens, so that the numbers of vectors differ."""
    (read,) = client.embed([QUERIES[1]]).token_vectors
    scored = client.score(QUERIES[1], "a").usage.prompt_tokens - client.score(QUERIES[0], "a").usage.prompt_tokens
    assert scored > len(read) - len(client.embed([QUERIES[0]]).token_vectors[0])


def test_refuses_what_has_no_form_or_place(client: Client, facade: Any) -> None:
    with pytest.raises(grpc.RpcError, match=r"a vector for each token, .* POST /glimpse/v1/embeddings"):
        facade.CreateEmbeddings(json_bodies({"input": "a"}))
    with pytest.raises(GlimpseError) as failure:
        client.rerank("a", [["b"]], instruction="c")
    assert failure.value.field == "instruction"
    for call in (client.rerank, client.score):
        with pytest.raises(GlimpseError, match="expected false, as scores of late interaction are sums, got true"):
            call("a", ["b"], use_activation=True)
        call("a", ["b"], use_activation=False)
    with pytest.raises(GlimpseError, match="no output head"):
        client.chat("a")
