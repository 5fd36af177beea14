"""EmbeddingService: parses requests, embeds their inputs and renders responses."""

import time
from dataclasses import dataclass

from glimpse.server.generation.embedder import Embedder
from glimpse.server.parse.pooling import EmbeddingModel, check_response_size, parse_embedding_request
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.embedding import render_embeddings
from glimpse.server.rpc.body_budget import body_size
from glimpse.server.rpc.context import current_rpc
from glimpse.server.rpc.offload import run_sized
from glimpse.server.rpc.typed_handlers import Context
from glimpse.server.services.models import ServedModel
from glimpse.v1 import embedding_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingHandlers:
    """Methods of EmbeddingService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    limits: EmbeddingModel
    embedder: Embedder

    async def create(
        self, request: embedding_pb2.CreateEmbeddingsRequest, _context: Context
    ) -> embedding_pb2.CreateEmbeddingsResponse:
        """CreateEmbeddings."""
        rpc = current_rpc()
        name = self.model.check_name(request.model)
        parsed = await run_sized(body_size(), parse_embedding_request, request, self.limits)
        del request  # which has the media's bytes
        check_response_size(parsed, self.limits, is_json=rpc.is_json)
        self.embedder.check_ready()
        head = CompletionHead(id=f"embd-{rpc.request_id}", created=int(time.time()), model=name)
        embeddings = await self.embedder.embed(parsed, rpc.request_id, client=rpc.client, deadline=rpc.deadline)
        rpc.prompt_tokens, rpc.completion_tokens = embeddings.usage.prompt_tokens, 0
        num_bytes = sum(map(len, embeddings.vectors))
        return await run_sized(num_bytes, render_embeddings, head, embeddings, as_base64=parsed.as_base64)
