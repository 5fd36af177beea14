"""Parses requests of RerankService: a prompt for each pair of a query and a document, answered with "yes" or "no"."""

from collections.abc import Iterable, Iterator
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


def parse_rerank(request: rerank_pb2.RerankRequest, call: CallContext, tokens: AnswerTokens | None) -> EmbeddingRequest:
    """Parses a request into one for the logits of the answers to each document. Raises InvalidRequest."""
    check_bounds(request)
    _check_repeated(request.query, "query", request)
    return _parse_pairs(request, call, repeat(request.query), _checked(tokens, "query"))


def parse_score(request: rerank_pb2.ScoreRequest, call: CallContext, tokens: AnswerTokens | None) -> EmbeddingRequest:
    """Parses a request into one for the logits of the answers to each pair. Raises InvalidRequest."""
    check_bounds(request)
    num_queries, num_documents = len(request.queries), len(request.documents)
    if num_queries not in (1, num_documents):
        message = f"expected 1, or {num_documents} as there are documents, got {num_queries}"
        raise InvalidRequest("queries", message)
    for index, query in enumerate(request.queries):
        if not query:
            raise InvalidRequest(f"queries[{index}]", "expected a text, got none", "missing_value")
    if num_queries == num_documents:
        return _parse_pairs(request, call, request.queries, _checked(tokens, "queries"))
    _check_repeated(request.queries[0], "queries[0]", request)
    return _parse_pairs(request, call, repeat(request.queries[0]), _checked(tokens, "queries"))


def _check_repeated(text: str, field: str, request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest) -> None:
    """Checks a text that stands in the prompt of each document."""
    most = MAX_REPEATED_CHARACTERS // len(request.documents)
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
    _check_repeated(request.instruction, "instruction", request)
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
