"""Parses the queries and documents that callers of `LLM` score, and makes scores of what the model returns for them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from glimpse.engine.checkpoint.text.relevance import Relevance
from glimpse.offline.documents import parse
from glimpse.offline.media.media_inputs import DocumentMedia, content_parts
from glimpse.offline.prompt_inputs import OfflineRequest
from glimpse.offline.run import EmbeddingOutput, RerankOutput, ScoreOutput
from glimpse.server.parse.rerank import parse_rerank, parse_score
from glimpse.server.request import Conversation, EmbeddingPrompt, EmbeddingRequest
from glimpse.server.served_model import ServedModel
from glimpse.v1.rerank_pb2 import RerankRequest, ScoreRequest

_UNBOUNDED = ("queries", "documents")
"""Lists whose bounds protect a server from its clients."""


Document: TypeAlias = str | Mapping[str, Any]
"""A text, or a dict of `text` or of `content`, whose parts are those of a conversation's messages."""


def parse_pairs(
    pairs: Mapping[str, object], relevance: Relevance | None, model: ServedModel
) -> tuple[list[OfflineRequest], EmbeddingRequest]:
    """Parses a request to score or, if it has one `query`, to rerank. Raises InputError."""
    media = DocumentMedia()
    document = {**pairs, "documents": _documents(pairs["documents"], media)}
    arguments: Mapping[str, Any] = {"relevance": relevance, "model": model, "unbounded": _UNBOUNDED}
    call, message_class, function = "LLM.score()", ScoreRequest, partial(parse_score, **arguments)
    if "query" in pairs:
        call, message_class, function = "LLM.rerank()", RerankRequest, partial(parse_rerank, **arguments)
    parsed = parse(document, message_class, function, call=call, names=media.names, replace=media.handle)
    return [_request(each, media) for each in parsed.inputs], parsed


def _documents(documents: object, media: DocumentMedia) -> object:
    if isinstance(documents, str | Mapping) or not isinstance(documents, Sequence):
        documents = [documents]
    return [
        {**document, "content": content_parts(document["content"], f"documents[{index}].content", media)}
        if isinstance(document, Mapping) and "content" in document
        else document
        for index, document in enumerate(cast("Sequence[Any]", documents))
    ]


def _request(each: EmbeddingPrompt, media: DocumentMedia) -> OfflineRequest:
    own = media.put_back(each.source.media, each.field) if isinstance(each.source, Conversation) else ()
    return OfflineRequest(prompt=each.source, media=own, field=each.field)


def score_outputs(relevance: Relevance, outputs: Sequence[EmbeddingOutput], num_documents: int) -> list[ScoreOutput]:
    """Returns the scores of documents, whose outputs are the last."""
    scores = relevance.scores([each.embedding.tobytes() for each in outputs], num_documents)
    return [
        ScoreOutput(prompt_token_ids=each.prompt_token_ids, score=score, num_cached_tokens=each.num_cached_tokens)
        for each, score in zip(outputs[-num_documents:], scores, strict=True)
    ]


def best_first(documents: Sequence[Document], scores: Sequence[ScoreOutput], top_n: int | None) -> list[RerankOutput]:
    """Returns the best documents in descending order; those with equal scores keep theirs."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index].score)
    return [
        RerankOutput(index=index, document=documents[index], relevance_score=scores[index].score)
        for index in order[:top_n]
    ]
