"""Renders scores of documents as RerankService responses."""

import struct

from glimpse.engine.checkpoint.text.relevance import relevance_score
from glimpse.server.generation.embedder import EmbeddedInputs
from glimpse.server.render.chat import CompletionHead, render_usage
from glimpse.v1 import rerank_pb2


def render_rerank(
    request_id: str, model: str, request: rerank_pb2.RerankRequest, logits: EmbeddedInputs
) -> rerank_pb2.RerankResponse:
    """Renders the best documents. `logits`: of "yes" and of "no", for each document."""
    scores = _scores(logits)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])  # stable: equal scores keep their order
    shows = request.return_documents if request.HasField("return_documents") else True
    return rerank_pb2.RerankResponse(
        id=f"rerank-{request_id}",
        model=model,
        results=[
            rerank_pb2.RerankResult(
                index=index,
                document=request.documents[index] if shows else None,
                relevance_score=scores[index],
            )
            for index in order[: request.top_n or len(order)]
        ],
        usage=render_usage(logits.usage),
    )


def render_scores(head: CompletionHead, logits: EmbeddedInputs) -> rerank_pb2.ScoreResponse:
    """Renders the score of each pair. `logits` are those of "yes" and of "no"."""
    return rerank_pb2.ScoreResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[rerank_pb2.Score(index=index, score=score) for index, score in enumerate(_scores(logits))],
        usage=render_usage(logits.usage),
    )


def _scores(logits: EmbeddedInputs) -> list[float]:
    return [relevance_score(*struct.unpack("<2f", vector)) for vector in logits.vectors]
