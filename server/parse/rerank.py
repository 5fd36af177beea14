"""Parses requests of RerankService: a prompt for each pair of a query and a document, answered with "yes" or "no"."""

from collections.abc import Collection, Iterable, Iterator
from itertools import repeat

from glimpse.engine.checkpoint.text.relevance import (
    NO_ANSWER_TOKENS,
    TEMPLATE_OPTIONS,
    AnswerTokens,
    relevance_messages,
)
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.parse.generation import check_priority
from glimpse.server.request import Conversation, EmbeddingPrompt, EmbeddingRequest
from glimpse.v1 import rerank_pb2

MAX_REPEATED_CHARACTERS = 64 << 20
"""Characters of a text in the prompt of each document, over all: prompts are far longer than the request."""


def parse_rerank(
    request: rerank_pb2.RerankRequest,
    call: CallContext,
    tokens: AnswerTokens | None,
    *,
    unbounded: Collection[str] = (),
) -> EmbeddingRequest:
    """Parses a request into one for the logits of the answers to each document. Raises InvalidRequest.

    `unbounded`: lists that may be longer than those of a server's requests.
    """
    check_bounds(request, unbounded=unbounded)
    if not unbounded:
        _check_repeated(request, query=request.query, instruction=request.instruction)
    return _parse_pairs(request, call, repeat(request.query), _checked(tokens, "query"))


def parse_score(
    request: rerank_pb2.ScoreRequest, call: CallContext, tokens: AnswerTokens | None, *, unbounded: Collection[str] = ()
) -> EmbeddingRequest:
    """Parses a request into one for the logits of the answers to each pair, as `parse_rerank`."""
    check_bounds(request, unbounded=unbounded)
    num_queries, num_documents = len(request.queries), len(request.documents)
    if num_queries not in (1, num_documents):
        message = f"expected 1, or {num_documents} as there are documents, got {num_queries}"
        raise InvalidRequest("queries", message)
    for index, query in enumerate(request.queries):
        if not query:
            raise InvalidRequest(f"queries[{index}]", "expected a text, got none", "missing_value")
    repeated = {} if num_queries == num_documents else {"queries[0]": request.queries[0]}
    if not unbounded:
        _check_repeated(request, **repeated, instruction=request.instruction)
    queries = repeat(request.queries[0]) if repeated else request.queries
    return _parse_pairs(request, call, queries, _checked(tokens, "queries"))


def _check_repeated(request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest, **texts: str) -> None:
    """Checks texts that stand in the prompt of each document, by their fields."""
    most = MAX_REPEATED_CHARACTERS // len(request.documents)
    for field, text in texts.items():
        if len(text) > most:
            message = f"expected at most {most} characters for {len(request.documents)} documents, got {len(text)}"
            raise InvalidRequest(field, message)


def _checked(tokens: AnswerTokens | None, field: str) -> AnswerTokens:
    if tokens is None:
        raise InvalidRequest(field, NO_ANSWER_TOKENS, "unsupported")
    return tokens


def _parse_pairs(
    request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest,
    call: CallContext,
    queries: Iterable[str],
    tokens: AnswerTokens,
) -> EmbeddingRequest:
    """`queries`: one for each document, or more."""
    check_priority(request.priority, call.tenant.limits)
    return EmbeddingRequest(
        inputs=tuple(_inputs(queries, request.documents, request.instruction)),
        pooling=tokens.pooling,
        as_base64=False,
        priority=request.priority,
        cache_salt=call.tenant.namespace(request.cache_salt),
    )


def _inputs(
    queries: Iterable[str], documents: Iterable[rerank_pb2.RerankDocument], instruction: str
) -> Iterator[EmbeddingPrompt]:
    for index, (document, query) in enumerate(zip(documents, queries, strict=False)):
        field = f"documents[{index}]"
        if not document.text:
            raise InvalidRequest(f"{field}.text", "expected a text, got none", "missing_value")
        messages = relevance_messages(query, document.text, instruction)
        yield EmbeddingPrompt(source=Conversation(messages=messages, media=[], options=TEMPLATE_OPTIONS), field=field)
