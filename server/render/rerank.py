"""Renders scores of documents as RerankService responses."""

from collections.abc import Sequence

from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import CompletionHead, render_usage
from glimpse.v1 import rerank_pb2


def render_rerank(
    request_id: str, model: str, request: rerank_pb2.RerankRequest, scores: Sequence[float], usage: Usage
) -> rerank_pb2.RerankResponse:
    """Renders the best documents, which repeat those of them that are texts."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])  # stable: equal scores keep their order
    shows = request.return_documents if request.HasField("return_documents") else True
    return rerank_pb2.RerankResponse(
        id=f"rerank-{request_id}",
        model=model,
        results=[
            rerank_pb2.RerankResult(
                index=index,
                document=request.documents[index] if shows and request.documents[index].text else None,
                relevance_score=scores[index],
            )
            for index in order[: request.top_n or len(order)]
        ],
        usage=render_usage(usage),
    )


def render_scores(head: CompletionHead, scores: Sequence[float], usage: Usage) -> rerank_pb2.ScoreResponse:
    """Renders the score of each pair."""
    return rerank_pb2.ScoreResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[rerank_pb2.Score(index=index, score=score) for index, score in enumerate(scores)],
        usage=render_usage(usage),
    )
