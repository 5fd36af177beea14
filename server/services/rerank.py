"""RerankService: parses requests, scores their documents and renders responses."""

import time
from dataclasses import dataclass, replace
from typing import cast

from glimpse.engine.checkpoint.text.relevance import Relevance
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.generation.embedder import Embedder
from glimpse.server.generation.usage import Usage
from glimpse.server.parse.rerank import parse_rerank, parse_score
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.rerank import render_rerank, render_scores
from glimpse.server.request import EmbeddingRequest
from glimpse.server.served_model import ServedModel
from glimpse.server.services.file_parts import set_kinds
from glimpse.v1 import rerank_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankHandlers:
    """Methods of RerankService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    relevance: Relevance | None
    """None: the model cannot rerank."""
    embedder: Embedder

    async def rerank(self, request: rerank_pb2.RerankRequest, call: CallContext) -> rerank_pb2.RerankResponse:
        name = self.model.check_name(request.model)
        num_bytes = call.body.num_bytes
        await set_kinds(request.documents, call, self.embedder.loader, cache_salt=request.cache_salt, field="documents")
        parsed = await run_sized(call.client, num_bytes, parse_rerank, request, call, self.relevance, self.model)
        for document in request.documents:
            document.ClearField("content")  # which has the media's bytes
        scores, usage = await self._scores(parsed, len(request.documents), name, call)
        return await run_sized(call.client, num_bytes, render_rerank, call.request_id, name, request, scores, usage)

    async def score(self, request: rerank_pb2.ScoreRequest, call: CallContext) -> rerank_pb2.ScoreResponse:
        name = self.model.check_name(request.model)
        await set_kinds(request.documents, call, self.embedder.loader, cache_salt=request.cache_salt, field="documents")
        parsed = await call.parse(parse_score, request, call, self.relevance, self.model)
        num_documents = len(request.documents)
        del request  # which has the media's bytes
        head = CompletionHead(id=f"score-{call.request_id}", created=int(time.time()), model=name)
        return render_scores(head, *await self._scores(parsed, num_documents, name, call))

    async def _scores(
        self, request: EmbeddingRequest, num_documents: int, name: str, call: CallContext
    ) -> tuple[list[float], Usage]:
        """Returns the score of each document and the usage of the request. `name`: the model's."""
        relevance = cast("Relevance", self.relevance)  # without it, no request can be parsed
        self.embedder.check_ready()
        pooled = await self.embedder.embed(replace(request, adapter=self.model.adapter_of(name)), call)
        num_bytes = sum(map(len, pooled.vectors))
        scores = await run_sized(call.client, num_bytes, relevance.scores, pooled.vectors, num_documents)
        return scores, pooled.usage
