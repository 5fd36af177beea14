"""RerankService: parses requests, scores their documents and renders responses."""

from dataclasses import dataclass

from glimpse.server.generation.embedder import Embedder
from glimpse.server.parse.rerank import AnswerTokens, parse_rerank
from glimpse.server.render.rerank import render_rerank
from glimpse.server.rpc.body_budget import body_size
from glimpse.server.rpc.context import current_rpc
from glimpse.server.rpc.offload import run_sized
from glimpse.server.rpc.typed_handlers import Context
from glimpse.server.services.models import ServedModel
from glimpse.v1 import rerank_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankHandlers:
    """Methods of RerankService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    tokens: AnswerTokens | None
    """None: the model cannot rerank."""
    embedder: Embedder

    async def rerank(self, request: rerank_pb2.RerankRequest, _context: Context) -> rerank_pb2.RerankResponse:
        """Rerank."""
        rpc = current_rpc()
        name = self.model.check_name(request.model)
        num_bytes = body_size()
        parsed = await run_sized(num_bytes, parse_rerank, request, self.tokens)
        self.embedder.check_ready()
        logits = await self.embedder.embed(parsed, rpc.request_id, client=rpc.client, deadline=rpc.deadline)
        rpc.prompt_tokens, rpc.completion_tokens = logits.usage.prompt_tokens, 0
        return await run_sized(num_bytes, render_rerank, rpc.request_id, name, request, logits)
