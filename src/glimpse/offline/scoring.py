"""Parses the queries and documents that callers of `LLM` score, and makes scores of the logits of the answers."""

from collections.abc import Mapping, Sequence
from functools import partial

from glimpse.engine.checkpoint.text.relevance import AnswerTokens, relevance_score
from glimpse.offline.documents import parse
from glimpse.offline.run import EmbeddingOutput, RerankOutput, ScoreOutput
from glimpse.server.parse.rerank import parse_rerank, parse_score
from glimpse.server.request import EmbeddingRequest
from glimpse.v1.rerank_pb2 import RerankRequest, ScoreRequest

_UNBOUNDED = ("queries", "documents")
"""Lists whose bounds protect a server from its clients."""


def parse_pairs(document: Mapping[str, object], tokens: AnswerTokens | None) -> EmbeddingRequest:
    """Parses a request to score or, if it has one `query`, to rerank. Raises InputError."""
    if "query" in document:
        rerank = partial(parse_rerank, tokens=tokens, unbounded=_UNBOUNDED)
        return parse(document, RerankRequest, rerank, call="LLM.rerank()")
    score = partial(parse_score, tokens=tokens, unbounded=_UNBOUNDED)
    return parse(document, ScoreRequest, score, call="LLM.score()")


def score_outputs(outputs: Sequence[EmbeddingOutput]) -> list[ScoreOutput]:
    """Returns the scores of pairs. The embeddings are the logits of "yes" and of "no"."""
    return [
        ScoreOutput(
            prompt_token_ids=each.prompt_token_ids,
            score=relevance_score(*each.embedding.tolist()),
            num_cached_tokens=each.num_cached_tokens,
        )
        for each in outputs
    ]


def best_first(documents: Sequence[str], scores: Sequence[ScoreOutput], top_n: int | None) -> list[RerankOutput]:
    """Returns the best documents in descending order; those with equal scores keep theirs."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index].score)
    return [
        RerankOutput(index=index, document=documents[index], relevance_score=scores[index].score)
        for index in order[:top_n]
    ]
