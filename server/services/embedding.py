"""EmbeddingService: parses requests, embeds their inputs and renders responses."""

import base64
import time
from dataclasses import dataclass

from glimpse.engine.protocol.pooling_params import PoolingMode
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.embedder import EmbeddedInputs, Embedder
from glimpse.server.parse.pooling import check_response_size, parse_embedding_request
from glimpse.server.render.chat import CompletionHead, render_usage
from glimpse.server.request import EmbeddingRequest
from glimpse.server.served_model import ServedModel
from glimpse.server.services.file_parts import set_kinds
from glimpse.v1 import embedding_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingHandlers:
    """Methods of EmbeddingService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    embedder: Embedder

    async def create(
        self, request: embedding_pb2.CreateEmbeddingsRequest, call: CallContext
    ) -> embedding_pb2.CreateEmbeddingsResponse:
        name = self.model.check_name(request.model)
        await self._set_kinds(request, call)
        parsed = await call.parse(parse_embedding_request, request, call, self.model)
        del request  # which has the media's bytes
        _check_form(parsed, call)
        parsed = check_response_size(parsed, self.model, is_json=call.is_json)
        self.embedder.check_ready()
        head = CompletionHead(id=f"embd-{call.request_id}", created=int(time.time()), model=name)
        embeddings = await self.embedder.embed(parsed, call)
        num_bytes = sum(map(len, embeddings.vectors))
        size = parsed.pooling.dimensions or self.model.embedding_size
        return await run_sized(
            call.client,
            num_bytes,
            render_embeddings,
            head,
            embeddings,
            as_base64=parsed.as_base64,
            dimensions=size if parsed.pooling.mode is PoolingMode.TOKEN else None,
        )

    async def _set_kinds(self, request: embedding_pb2.CreateEmbeddingsRequest, call: CallContext) -> None:
        conversations = {
            f"inputs[{index}].conversation.messages": each.conversation.messages
            for index, each in enumerate(request.inputs)
            if each.HasField("conversation")
        }
        for field, messages in ({"messages": request.messages} | conversations).items():
            await set_kinds(messages, call, self.embedder.loader, cache_salt=request.cache_salt, field=field)


def _check_form(request: EmbeddingRequest, call: CallContext) -> None:
    if call.is_dialect and request.pooling.mode is PoolingMode.TOKEN:
        message = (
            "expected another model: this one returns a vector for each token, for which this API has no form; use "
            "EmbeddingService over gRPC, or POST /glimpse/v1/embeddings"
        )
        raise InvalidRequest("model", message, "unsupported")


def render_embeddings(
    head: CompletionHead, embeddings: EmbeddedInputs, *, as_base64: bool, dimensions: int | None = None
) -> embedding_pb2.CreateEmbeddingsResponse:
    return embedding_pb2.CreateEmbeddingsResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=[
            embedding_pb2.Embedding(index=index, base64=base64.b64encode(vector).decode(), dimensions=dimensions)
            if as_base64
            else embedding_pb2.Embedding(index=index, values=vector, dimensions=dimensions)
            for index, vector in enumerate(embeddings.vectors)
        ],
        usage=render_usage(embeddings.usage),
    )
