"""EmbeddingService: parses requests, embeds their inputs and renders responses."""

import time
from dataclasses import dataclass

from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.generation.embedder import Embedder
from glimpse.server.parse.pooling import check_response_size, parse_embedding_request
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.embedding import render_embeddings
from glimpse.server.served_model import ServedModel
from glimpse.v1 import embedding_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingHandlers:
    """Methods of EmbeddingService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    embedder: Embedder

    async def create(
        self, request: embedding_pb2.CreateEmbeddingsRequest, call: CallContext
    ) -> embedding_pb2.CreateEmbeddingsResponse:
        """CreateEmbeddings."""
        name = self.model.check_name(request.model)
        parsed = await call.parse(parse_embedding_request, request, call, self.model)
        del request  # which has the media's bytes
        check_response_size(parsed, self.model, is_json=call.is_json)
        self.embedder.check_ready()
        head = CompletionHead(id=f"embd-{call.request_id}", created=int(time.time()), model=name)
        embeddings = await self.embedder.embed(parsed, call)
        num_bytes = sum(map(len, embeddings.vectors))
        return await run_sized(call.client, num_bytes, render_embeddings, head, embeddings, as_base64=parsed.as_base64)
