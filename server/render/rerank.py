"""Renders scores of documents as RerankService responses."""

import math
import struct

from glimpse.server.generation.embedder import Embeddings
from glimpse.server.render.chat import render_usage
from glimpse.v1 import rerank_pb2


def render_rerank(
    request_id: str, model: str, request: rerank_pb2.RerankRequest, logits: Embeddings
) -> rerank_pb2.RerankResponse:
    """Renders the best documents.

    Args:
        request_id: of the RPC.
        model: its name for the response.
        request: what was asked.
        logits: of "yes" and of "no", for each document.
    """
    scores = [_probability(*struct.unpack("<2f", vector)) for vector in logits.vectors]
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


def _probability(yes: float, no: float) -> float:
    """Returns the share of exp(yes) in exp(yes) + exp(no)."""
    odds = math.exp(-abs(yes - no))
    return 1 / (1 + odds) if yes > no else odds / (1 + odds)
