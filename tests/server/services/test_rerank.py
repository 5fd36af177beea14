"""RerankService: scores are the reference's probabilities of "yes"; documents are ordered by them, pairs are not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import rerank_pb2, rerank_pb2_grpc, tokenizer_pb2, tokenizer_pb2_grpc
from tests.checkpoints.text import make_reranker_checkpoint
from tests.oracles.pooling import next_token_logits
from tests.server.requests import json_bodies
from tests.server.services.error_details import details
from tests.server.serving import served

CHECKPOINT = make_reranker_checkpoint
Request = rerank_pb2.RerankRequest
YES, NO = 301, 302
QUERY = "the sea"
DOCUMENTS = ["the sea is red", "an inn", "one thing is on the other " * 9, "the <|im_end|> is text"]
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PROMPT = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt on Qwen3-Reranker's model card."""


@pytest.fixture(scope="module")
def reranker(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    with served(checkpoint, tmp_path_factory.mktemp("reranker")) as server, server.channel() as channel:
        yield channel


def documents(*texts: str) -> list[rerank_pb2.RerankDocument]:
    return [rerank_pb2.RerankDocument(text=text) for text in texts]


def rerank(channel: grpc.Channel, **fields: Any) -> rerank_pb2.RerankResponse:
    members: dict[str, Any] = {"query": QUERY, "documents": documents(*DOCUMENTS)} | fields
    return rerank_pb2_grpc.RerankServiceStub(channel).Rerank(Request(**members))


def score(channel: grpc.Channel, queries: list[str], texts: list[str], **fields: Any) -> rerank_pb2.ScoreResponse:
    request = rerank_pb2.ScoreRequest(queries=queries, documents=documents(*texts), **fields)
    return rerank_pb2_grpc.RerankServiceStub(channel).Score(request)


def reference(
    channel: grpc.Channel, path: Path, document: str, instruction: str = INSTRUCTION, query: str = QUERY
) -> float:
    """Returns the score that the model card's code computes with transformers."""
    prompt = PROMPT.format(instruction=instruction, query=query, document=document)
    request = tokenizer_pb2.TokenizeRequest(prompt=prompt)
    tokens = tokenizer_pb2_grpc.TokenizerServiceStub(channel).Tokenize(request).tokens
    return torch.softmax(next_token_logits(path, tokens)[[YES, NO]], dim=0)[0].item()


def test_scores_equal_the_reference(reranker: grpc.Channel, checkpoint: Path) -> None:
    plain = DOCUMENTS[:3]  # a special token in client text is text, unlike in the reference's prompt
    response = rerank(reranker, documents=documents(*plain))
    scores = {result.index: result.relevance_score for result in response.results}
    expected = {index: reference(reranker, checkpoint, document) for index, document in enumerate(plain)}
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in scores.values()}) == 3


def test_results_are_the_best_documents_in_order(reranker: grpc.Channel) -> None:
    every, best = rerank(reranker), rerank(reranker, top_n=2)
    scores = [result.relevance_score for result in every.results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result.index for result in every.results) == [0, 1, 2, 3]
    assert [result.document.text for result in every.results] == [DOCUMENTS[result.index] for result in every.results]
    assert [result.index for result in best.results] == [result.index for result in every.results[:2]]
    assert every.usage.total_tokens == every.usage.prompt_tokens > 100
    assert every.id.startswith("rerank-")


def test_an_instruction_replaces_the_default(reranker: grpc.Channel, checkpoint: Path) -> None:
    (result,) = rerank(reranker, documents=documents("an inn"), instruction="the other", return_documents=False).results
    assert result.relevance_score == pytest.approx(reference(reranker, checkpoint, "an inn", "the other"), abs=1e-5)
    assert not result.HasField("document")


def test_openai_s_facade_returns_jina_s_json(reranker: grpc.Channel) -> None:
    body = {"query": QUERY, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}]}
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(reranker)
    answer = json.loads(openai.Rerank(json_bodies(body)).data)
    typed = rerank(reranker, documents=documents(*DOCUMENTS[:2]))
    for result, other in zip(answer["results"], typed.results, strict=True):
        assert (result["index"], result["document"]) == (other.index, {"text": DOCUMENTS[other.index]})
        assert result["relevance_score"] == pytest.approx(other.relevance_score, abs=1e-6)
    assert answer["usage"]["total_tokens"] == typed.usage.total_tokens


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"query": ""}, "query", "MISSING_VALUE"),
        ({"documents": []}, "documents", "MISSING_VALUE"),
        ({"query": "the " * 10_000, "documents": documents(*["a"] * 2048)}, "query", "INVALID_VALUE"),
        ({"instruction": "the " * 10_000, "documents": documents(*["a"] * 2048)}, "instruction", "INVALID_VALUE"),
        ({"documents": documents("a", "")}, "documents[1].text", "MISSING_VALUE"),
        ({"documents": documents("a", "the " * 600)}, "documents[1]", "CONTEXT_LENGTH_EXCEEDED"),
        ({"top_n": 0}, "top_n", "INVALID_VALUE"),
        ({"priority": 101}, "priority", "INVALID_VALUE"),
        ({"use_activation": False}, "use_activation", "UNSUPPORTED"),
    ],
)
def test_errors_name_the_field(reranker: grpc.Channel, fields: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rerank(reranker, **fields)
    info, violations = details(caught.value)
    assert (info.reason, [each.field for each in violations.field_violations]) == (reason, [field])


def test_scores_pairs_in_their_order(reranker: grpc.Channel, checkpoint: Path) -> None:
    queries = ["the sea", "an inn", "the winter"]
    pairs = score(reranker, queries, DOCUMENTS[:3])
    expected = [
        reference(reranker, checkpoint, each, query=query) for query, each in zip(queries, DOCUMENTS[:3], strict=True)
    ]
    assert [each.score for each in pairs.data] == pytest.approx(expected, abs=1e-5)
    assert [each.index for each in pairs.data] == [0, 1, 2]
    assert pairs.usage.total_tokens == pairs.usage.prompt_tokens > 100
    assert pairs.id.startswith("score-")
    assert pairs.created > 0


def test_one_query_is_scored_with_each_document(reranker: grpc.Channel, checkpoint: Path) -> None:
    one = score(reranker, [QUERY], DOCUMENTS)
    ranked = {result.index: result.relevance_score for result in rerank(reranker).results}
    assert {each.index: each.score for each in one.data} == pytest.approx(ranked, abs=1e-6)
    (told,) = score(reranker, [QUERY], DOCUMENTS[:1], instruction="the other", use_activation=True).data
    assert told.score == pytest.approx(reference(reranker, checkpoint, DOCUMENTS[0], "the other"), abs=1e-5)


def test_openai_s_facade_takes_and_returns_vllm_s_json(reranker: grpc.Channel) -> None:
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(reranker)
    body = {"text_1": QUERY, "text_2": [DOCUMENTS[0], {"text": DOCUMENTS[1]}]}
    answer = json.loads(openai.Score(json_bodies(body)).data)
    typed = score(reranker, [QUERY], DOCUMENTS[:2])
    assert answer["object"] == "list"
    assert [each["object"] for each in answer["data"]] == ["score", "score"]
    assert [each["score"] for each in answer["data"]] == pytest.approx([each.score for each in typed.data], abs=1e-6)


@pytest.mark.parametrize(
    ("queries", "texts", "fields", "field", "reason"),
    [
        ([], ["a"], {}, "queries", "MISSING_VALUE"),
        (["a", ""], ["a", "b"], {}, "queries[1]", "MISSING_VALUE"),
        (["a", "b"], ["a", "b", "c"], {}, "queries", "INVALID_VALUE"),
        (["a", "b"], ["a"], {}, "queries", "INVALID_VALUE"),
        (["a"], [], {}, "documents", "MISSING_VALUE"),
        (["a"], ["a", ""], {}, "documents[1].text", "MISSING_VALUE"),
        (["a", "b"], ["a", "the " * 600], {}, "documents[1]", "CONTEXT_LENGTH_EXCEEDED"),
        (["the " * 10_000], ["a"] * 2048, {}, "queries[0]", "INVALID_VALUE"),
        (["a"], ["a"], {"priority": -101}, "priority", "INVALID_VALUE"),
    ],
)
def test_errors_of_pairs_name_the_field(
    reranker: grpc.Channel, queries: list[str], texts: list[str], fields: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        score(reranker, queries, texts, **fields)
    info, violations = details(caught.value)
    assert (info.reason, [each.field for each in violations.field_violations]) == (reason, [field])


def test_a_model_without_tokens_for_the_answers_is_refused_by_name(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        rerank(channel)
    with pytest.raises(grpc.RpcError) as pairs:
        score(channel, ["a"], ["b"])
    for error in (caught.value, pairs.value):
        info, _ = details(error)
        assert info.reason == "UNSUPPORTED"
        assert "its tokenizer has no single tokens for" in str(error.details())
