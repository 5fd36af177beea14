"""The clients' `rerank` and `score`, from a real server with a reranker."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, get_type_hints

import pytest

from glimpse.client import GlimpseError, RerankOptions, ScoreOptions
from glimpse.client.options import CallOptions
from glimpse.client.requests import rerank_request
from glimpse.v1 import rerank_pb2
from tests.checkpoints.text import make_reranker_checkpoint
from tests.client.harness import opened
from tests.e2e.stack import Served
from tests.server.serving import served

DOCUMENTS = ["the sea is red", "an inn", "one thing is on the other"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = make_reranker_checkpoint(tmp_path_factory.mktemp("checkpoints") / "reranker")
    with served(path, tmp_path_factory.mktemp("reranker")) as server:
        yield server


@pytest.fixture
async def client(kind: str, reranker: Served) -> AsyncIterator[Any]:
    async with opened(kind, f"127.0.0.1:{reranker.port}") as client:
        yield client


async def test_scores_pairs_and_orders_documents(client: Any) -> None:
    scores = await client.score("the sea", DOCUMENTS)
    assert len(set(scores.scores)) == 3
    assert scores.usage.prompt_tokens > 100
    pairs = await client.score(["the sea", "the sea", "the sea"], DOCUMENTS)
    assert pairs.scores == pytest.approx(scores.scores, abs=1e-6)
    ranking = await client.rerank("the sea", DOCUMENTS, top_n=2, return_documents=False)
    best = sorted(range(3), key=lambda index: -scores.scores[index])[:2]
    assert [result.index for result in ranking.results] == best
    assert [result.relevance_score for result in ranking.results] == pytest.approx(
        [scores.scores[index] for index in best], abs=1e-6
    )
    with pytest.raises(GlimpseError) as failure:
        await client.score(["a", "b"], DOCUMENTS)
    assert failure.value.field == "queries"


def test_options_cover_the_fields_of_requests() -> None:
    call = set(get_type_hints(CallOptions))
    score = set(rerank_pb2.ScoreRequest.DESCRIPTOR.fields_by_name)
    assert set(get_type_hints(ScoreOptions)) - call == score - {"queries", "documents"}
    rerank = set(rerank_pb2.RerankRequest.DESCRIPTOR.fields_by_name)
    assert set(get_type_hints(RerankOptions)) - call == rerank - {"query", "documents"}


def test_a_single_text_is_no_list_of_documents() -> None:
    with pytest.raises(TypeError, match="'documents': expected a list of texts, got str"):
        rerank_request("a", "b", {})
