"""RerankService: parses requests, scores their documents and renders responses."""

import time
from dataclasses import dataclass

from glimpse.engine.checkpoint.text.relevance import AnswerTokens
from glimpse.server.generation.embedder import Embedder, Embeddings
from glimpse.server.parse.rerank import parse_rerank, parse_score
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.rerank import render_rerank, render_scores
from glimpse.server.request import EmbeddingRequest
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
        logits = await self._answer_logits(parsed)
        return await run_sized(num_bytes, render_rerank, rpc.request_id, name, request, logits)

    async def score(self, request: rerank_pb2.ScoreRequest, _context: Context) -> rerank_pb2.ScoreResponse:
        """Score."""
        name = self.model.check_name(request.model)
        parsed = await run_sized(body_size(), parse_score, request, self.tokens)
        head = CompletionHead(id=f"score-{current_rpc().request_id}", created=int(time.time()), model=name)
        return render_scores(head, await self._answer_logits(parsed))

    async def _answer_logits(self, request: EmbeddingRequest) -> Embeddings:
        """Returns the logits of "yes" and of "no" for each of the request's prompts."""
        rpc = current_rpc()
        self.embedder.check_ready()
        logits = await self.embedder.embed(request, rpc.request_id, client=rpc.client, deadline=rpc.deadline)
        rpc.prompt_tokens, rpc.completion_tokens = logits.usage.prompt_tokens, 0
        return logits
