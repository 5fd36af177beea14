"""RerankService: parses requests, scores their documents and renders responses."""

import time
from dataclasses import dataclass, replace

from glimpse.engine.checkpoint.text.relevance import AnswerTokens
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.generation.embedder import EmbeddedInputs, Embedder
from glimpse.server.parse.rerank import parse_rerank, parse_score
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.rerank import render_rerank, render_scores
from glimpse.server.request import EmbeddingRequest
from glimpse.server.served_model import ServedModel
from glimpse.v1 import rerank_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankHandlers:
    """Methods of RerankService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    tokens: AnswerTokens | None
    """None: the model cannot rerank."""
    embedder: Embedder

    async def rerank(self, request: rerank_pb2.RerankRequest, call: CallContext) -> rerank_pb2.RerankResponse:
        name = self.model.check_name(request.model)
        num_bytes = call.body.num_bytes
        parsed = await run_sized(call.client, num_bytes, parse_rerank, request, call, self.tokens)
        logits = await self._answer_logits(parsed, name, call)
        return await run_sized(call.client, num_bytes, render_rerank, call.request_id, name, request, logits)

    async def score(self, request: rerank_pb2.ScoreRequest, call: CallContext) -> rerank_pb2.ScoreResponse:
        name = self.model.check_name(request.model)
        parsed = await call.parse(parse_score, request, call, self.tokens)
        head = CompletionHead(id=f"score-{call.request_id}", created=int(time.time()), model=name)
        return render_scores(head, await self._answer_logits(parsed, name, call))

    async def _answer_logits(self, request: EmbeddingRequest, name: str, call: CallContext) -> EmbeddedInputs:
        """Returns the logits of "yes" and of "no" for each of the request's prompts. `name`: the model's."""
        self.embedder.check_ready()
        return await self.embedder.embed(replace(request, adapter=self.model.adapter_of(name)), call)
