"""Renders embeddings as EmbeddingService responses."""

import base64

from glimpse.server.generation.embedder import EmbeddedInputs
from glimpse.server.render.chat import CompletionHead, render_usage
from glimpse.v1 import embedding_pb2


def render_embeddings(
    head: CompletionHead, embeddings: EmbeddedInputs, *, as_base64: bool
) -> embedding_pb2.CreateEmbeddingsResponse:
    """Renders the embeddings of a request."""
    return embedding_pb2.CreateEmbeddingsResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[
            embedding_pb2.Embedding(index=index, base64=base64.b64encode(vector).decode())
            if as_base64
            else embedding_pb2.Embedding(index=index, values=vector)
            for index, vector in enumerate(embeddings.vectors)
        ],
        usage=render_usage(embeddings.usage),
    )
