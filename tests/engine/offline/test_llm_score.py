"""`LLM.score` and `LLM.rerank`: scores equal transformers' probabilities of "yes"."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineError
from glimpse.engine.protocol.messages import Embed
from glimpse.offline.llm import LLM, EmbeddingOutput, InputError
from glimpse.offline.run import run_embeddings
from tests.checkpoints.text import make_reranker_checkpoint
from tests.engine.offline.llm_inputs import load
from tests.oracles.pooling import next_token_logits

YES, NO = 301, 302
DOCUMENTS = ["the sea is red", "an inn", "one thing is on the other " * 9]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reranker_checkpoint(tmp_path_factory.mktemp("checkpoints") / "reranker")


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return load(path, max_batch_tokens=48)  # long prompts are computed in chunks


def probability(path: Path, token_ids: Sequence[int]) -> float:
    return torch.softmax(next_token_logits(path, token_ids)[[YES, NO]], dim=0)[0].item()


def test_scores_equal_the_reference(llm: LLM, path: Path) -> None:
    outputs = llm.score("the sea", DOCUMENTS, progress=False)
    expected = [probability(path, each.prompt_token_ids) for each in outputs]
    assert [each.score for each in outputs] == pytest.approx(expected, abs=1e-5)
    assert len({round(each.score, 3) for each in outputs}) == 3


def test_each_query_is_scored_with_its_document(llm: LLM) -> None:
    queries = ["the sea", "an inn"]
    pairs = llm.score(queries, DOCUMENTS[:2], progress=False)
    alone = [llm.score(query, document)[0] for query, document in zip(queries, DOCUMENTS, strict=False)]
    assert [each.prompt_token_ids for each in pairs] == [each.prompt_token_ids for each in alone]
    assert [each.score for each in pairs] == pytest.approx([each.score for each in alone], abs=1e-6)


def test_reranking_returns_the_best_documents_first(llm: LLM) -> None:
    scores = [each.score for each in llm.score("the sea", DOCUMENTS, instruction="red", progress=False)]
    ranked = llm.rerank("the sea", DOCUMENTS, instruction="red", top_n=2, progress=False)
    assert [each.relevance_score for each in ranked] == pytest.approx(sorted(scores, reverse=True)[:2], abs=1e-6)
    assert [each.document for each in ranked] == [DOCUMENTS[each.index] for each in ranked]


def test_documents_may_be_more_than_a_server_takes(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are the same document, which is computed once."""

    def computed_once(core: Core, embeds: Sequence[Embed], *, progress: bool) -> list[EmbeddingOutput]:
        return run_embeddings(core, embeds[:1], progress=progress) * len(embeds)

    number = 2050
    (alone,) = llm.score("the sea", DOCUMENTS[0], progress=False)
    monkeypatch.setattr("glimpse.offline.llm.run_embeddings", computed_once)
    for queries in ("the sea", ["the sea"] * number):
        scores = [each.score for each in llm.score(queries, [DOCUMENTS[0]] * number, progress=False)]
        assert scores == pytest.approx([alone.score] * number, abs=1e-5)
    assert len(llm.rerank("the sea", [DOCUMENTS[0]] * number, progress=False)) == number


@pytest.mark.parametrize(
    ("queries", "documents", "options", "message"),
    [
        pytest.param(["a", "b"], ["a", "b", "c"], {}, "^'queries': expected 1, or 3 .* got 2$", id="numbers"),
        pytest.param(
            "a", [], {}, "^'documents': required, but missing or empty; send at least one element$", id="no document"
        ),
        pytest.param("a", ["b", 3], {}, r"^'documents\[1\]': expected a string or an object", id="a number"),
        pytest.param("", "a", {}, r"^'queries\[0\]': expected a text, got none$", id="no query"),
        pytest.param(
            "a", "b", {"instruction": 3}, "^'instruction': expected a string, got an integer$", id="instruction"
        ),
    ],
)
def test_errors_name_the_argument(
    llm: LLM, queries: Any, documents: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        llm.score(queries, documents, **options)


def test_errors_of_reranking_name_the_argument(llm: LLM) -> None:
    with pytest.raises(InputError, match=r"^'top_n': expected an integer of at least 1, got 0$"):
        llm.rerank("a", ["b"], top_n=0)
    with pytest.raises(InputError, match=r"^'query': required, but missing or empty; send at least one character$"):
        llm.rerank("", ["b"])
    with pytest.raises(EngineError, match=r"^'documents\[1\]': the prompt has"):
        llm.rerank("a", ["b", "the " * 600])


def test_a_model_without_tokens_for_the_answers_is_refused(tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no single tokens for"):
        load(tiny_checkpoint).score("a", "b")
