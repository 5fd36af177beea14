"""Parses requests of RerankService: a prompt for each pair of a query and a document, answered with "yes" or "no"; for
late interaction, prompts for the queries and then for the documents."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat

from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, TemplateOptions
from glimpse.engine.checkpoint.text.relevance import (
    NO_ANSWER_TOKENS,
    QUERY_OPTIONS,
    TEMPLATE_OPTIONS,
    AnswerTokens,
    Relevance,
)
from glimpse.media.inputs import MediumInput
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.parse.content import parse_parts
from glimpse.server.parse.generation import check_priority
from glimpse.server.parse.pooling import MAX_RESPONSE_BYTES
from glimpse.server.request import Conversation, EmbeddingPrompt, EmbeddingRequest
from glimpse.server.served_model import ServedModel
from glimpse.v1 import rerank_pb2

MAX_REPEATED_CHARACTERS = 64 << 20
"""Characters of a text in the prompt of each document, over all: prompts are far longer than the request."""


def parse_rerank(
    request: rerank_pb2.RerankRequest,
    call: CallContext,
    relevance: Relevance | None,
    model: ServedModel,
    *,
    unbounded: Collection[str] = (),
) -> EmbeddingRequest:
    """Parses a request into one for what `relevance` makes scores of. Raises InvalidRequest.

    `unbounded`: lists that may be longer than those of a server's requests.
    """
    check_bounds(request, unbounded=unbounded)
    if not unbounded:
        _check_repeated(request, query=request.query, instruction=request.instruction)
    return _parse_pairs(request, call, {"query": request.query}, _checked(relevance, "query"), model, unbounded)


def parse_score(
    request: rerank_pb2.ScoreRequest,
    call: CallContext,
    relevance: Relevance | None,
    model: ServedModel,
    *,
    unbounded: Collection[str] = (),
) -> EmbeddingRequest:
    """Does what `parse_rerank` does, for pairs."""
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
    queries = {f"queries[{index}]": query for index, query in enumerate(request.queries)}
    return _parse_pairs(request, call, queries, _checked(relevance, "queries"), model, unbounded)


def _check_repeated(request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest, **texts: str) -> None:
    """Checks texts that stand in the prompt of each document, by their fields."""
    most = MAX_REPEATED_CHARACTERS // len(request.documents)
    for field, text in texts.items():
        if len(text) > most:
            message = f"expected at most {most} characters for {len(request.documents)} documents, got {len(text)}"
            raise InvalidRequest(field, message)


def _checked(relevance: Relevance | None, field: str) -> Relevance:
    if relevance is None:
        raise InvalidRequest(field, NO_ANSWER_TOKENS, "unsupported")
    return relevance


def _parse_pairs(
    request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest,
    call: CallContext,
    queries: Mapping[str, str],
    relevance: Relevance,
    model: ServedModel,
    unbounded: Collection[str],
) -> EmbeddingRequest:
    """`queries`: one for all documents, or one for each, by their fields."""
    check_priority(request.priority, call.tenant.limits)
    documents = [
        _parse_document(document, model, f"documents[{index}]") for index, document in enumerate(request.documents)
    ]
    max_tokens = None
    _check_activation(request, relevance)
    if isinstance(relevance, AnswerTokens):
        inputs = _answered(relevance, queries.values(), documents, request.instruction)
    elif request.instruction:
        message = "expected none, as the model scores by late interaction, without instructions"
        raise InvalidRequest("instruction", message, "unsupported")
    else:
        inputs = _embedded(queries, documents)
        max_tokens = None if unbounded else MAX_RESPONSE_BYTES // (4 * relevance.size)
    return EmbeddingRequest(
        inputs=tuple(inputs),
        pooling=relevance.pooling,
        max_tokens=max_tokens,
        as_base64=False,
        priority=request.priority,
        cache_salt=call.tenant.namespace(request.cache_salt),
    )


def _check_activation(request: rerank_pb2.RerankRequest | rerank_pb2.ScoreRequest, relevance: Relevance) -> None:
    is_activated = isinstance(relevance, AnswerTokens)
    if request.HasField("use_activation") and request.use_activation is not is_activated:
        why = "scores are probabilities" if is_activated else "scores of late interaction are sums"
        got = f"expected {is_activated}, as {why}, got {request.use_activation}".lower()
        raise InvalidRequest("use_activation", got, "unsupported")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    content: tuple[str | MediaSlot, ...]
    media: list[MediumInput]
    field: str


def _parse_document(document: rerank_pb2.RerankDocument, model: ServedModel, field: str) -> _Document:
    if document.text and document.content:
        raise InvalidRequest(field, "expected either text or content, got both", "conflicting_values")
    if document.content:
        content, media = parse_parts(document.content, model, field=f"{field}.content")
        return _Document(content=content, media=media, field=field)
    if not document.text:
        raise InvalidRequest(f"{field}.text", "expected a text, got none", "missing_value")
    return _Document(content=(document.text,), media=[], field=field)


def _answered(
    relevance: AnswerTokens, queries: Collection[str], documents: Iterable[_Document], instruction: str
) -> Iterator[EmbeddingPrompt]:
    """Yields the prompt of each pair."""
    for document, query in zip(documents, repeat(*queries) if len(queries) == 1 else queries, strict=False):
        messages = relevance.messages(query, document.content, instruction)
        conversation = Conversation(messages=messages, media=document.media, options=TEMPLATE_OPTIONS)
        yield EmbeddingPrompt(source=conversation, field=document.field)


def _embedded(queries: Mapping[str, str], documents: Iterable[_Document]) -> Iterator[EmbeddingPrompt]:
    """Yields the prompts of the queries, then those of the documents."""
    for field, query in queries.items():
        yield _prompt((query,), [], QUERY_OPTIONS, field)
    for document in documents:
        yield _prompt(document.content, document.media, TemplateOptions(add_generation_prompt=False), document.field)


def _prompt(
    content: tuple[str | MediaSlot, ...], media: list[MediumInput], options: TemplateOptions, field: str
) -> EmbeddingPrompt:
    message = ChatMessage(role="user", content=content)
    return EmbeddingPrompt(source=Conversation(messages=(message,), media=media, options=options), field=field)
