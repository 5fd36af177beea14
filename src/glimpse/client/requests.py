"""Builds requests and the arguments of calls, for both clients. Does no I/O except reading media files."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from glimpse.client.messages import EmbeddingInput, ImageFile, Prompt, read_file, to_messages
from glimpse.client.options import (
    CallOptions,
    ChatOptions,
    CountOptions,
    EmbedOptions,
    RerankOptions,
    ScoreOptions,
    UploadOptions,
)
from glimpse.v1 import chat_pb2, completion_pb2, embedding_pb2, generation_pb2, media_pb2, rerank_pb2

_CHUNK_BYTES = 1 << 20
_KEY_OF_HEADERS = re.compile(r"(?!-$)[!-\[\]-~]{1,128}")
"""Keys that the gateway takes from the body as they are; of others it makes a digest."""


def chat_request(
    prompt: Prompt, options: ChatOptions, *, streaming: bool = False
) -> chat_pb2.CreateChatCompletionRequest:
    """Returns the request of `chat`, or of `stream` with the usage at its end. Reads media files. Raises OSError."""
    members = _members(options)
    generation = {
        name: members.pop(name)
        for name in generation_pb2.GenerationOptions.DESCRIPTOR.fields_by_name
        if name in members
    }
    return chat_pb2.CreateChatCompletionRequest(
        messages=to_messages(prompt),
        generation=generation_pb2.GenerationOptions(**generation),
        stream_options=chat_pb2.StreamOptions(include_usage=True) if streaming else None,
        **members,
    )


def count_request(prompt: Prompt, options: CountOptions) -> chat_pb2.CountTokensRequest:
    """Returns the request of `count_tokens`. Reads media files. Raises OSError."""
    return chat_pb2.CountTokensRequest(messages=to_messages(prompt), **_members(options))


def embedding_request(inputs: Sequence[EmbeddingInput], options: EmbedOptions) -> embedding_pb2.CreateEmbeddingsRequest:
    """Returns the request of `embed`. Reads media files. Raises OSError, and TypeError for inputs of another type."""
    if isinstance(inputs, str):
        raise TypeError("'inputs': expected a list of inputs, got str; pass [text]")
    return embedding_pb2.CreateEmbeddingsRequest(inputs=map(_to_input, inputs), **_members(options))


def _to_input(given: EmbeddingInput) -> embedding_pb2.EmbeddingInput:
    if isinstance(given, str):
        return embedding_pb2.EmbeddingInput(text=given)
    if given and all(isinstance(each, int) for each in given):
        return embedding_pb2.EmbeddingInput(token_ids=completion_pb2.TokenIds(ids=cast("Sequence[int]", given)))
    messages = to_messages(cast("Prompt", given))
    return embedding_pb2.EmbeddingInput(conversation=embedding_pb2.EmbeddingConversation(messages=messages))


def rerank_request(query: str, documents: Sequence[str], options: RerankOptions) -> rerank_pb2.RerankRequest:
    """Returns the request of `rerank`. Raises TypeError for documents of another type."""
    return rerank_pb2.RerankRequest(query=query, documents=_to_documents(documents), **_members(options))


def score_request(
    queries: str | Sequence[str], documents: str | Sequence[str], options: ScoreOptions
) -> rerank_pb2.ScoreRequest:
    """Returns the request of `score`."""
    queries, documents = ([each] if isinstance(each, str) else each for each in (queries, documents))
    return rerank_pb2.ScoreRequest(queries=queries, documents=_to_documents(documents), **_members(options))


def _to_documents(documents: Sequence[str]) -> list[rerank_pb2.RerankDocument]:
    if isinstance(documents, str):
        raise TypeError("'documents': expected a list of texts, got str; pass [text]")
    return [rerank_pb2.RerankDocument(text=document) for document in documents]


def upload_requests(source: ImageFile, options: UploadOptions) -> Iterator[media_pb2.UploadMediaRequest]:
    """Reads the file and returns an upload's header and chunks. Raises OSError, and ValueError for an invalid key."""
    if (key := options.get("prompt_cache_key")) is not None and not _KEY_OF_HEADERS.fullmatch(key):
        raise ValueError(f"'prompt_cache_key': expected 1 to 128 ASCII characters without spaces and \\, got {key!r}")
    data = read_file(source)
    header = media_pb2.UploadHeader(
        sha256=hashlib.sha256(data).digest(),
        size_bytes=len(data),
        cache_salt=options.get("cache_salt"),
        ttl_seconds=options.get("ttl_seconds"),
    )
    chunks = (data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES))
    return chain(
        [media_pb2.UploadMediaRequest(header=header)], (media_pb2.UploadMediaRequest(chunk=chunk) for chunk in chunks)
    )


def call_arguments(options: CallOptions, default_timeout: float | None, api_key: str | None = None) -> dict[str, Any]:
    """Returns the keyword arguments of the gRPC call."""
    metadata = [("x-request-id", options["request_id"])] if "request_id" in options else []
    if api_key is not None:
        metadata.append(("authorization", f"Bearer {api_key}"))
    key: object = options.get("prompt_cache_key")
    if isinstance(key, str) and _KEY_OF_HEADERS.fullmatch(key):
        # A gateway reads only the beginning of a large request.
        metadata.append(("x-prompt-cache-key", key))
    return {"timeout": options.get("timeout", default_timeout), "metadata": metadata or None}


def _members(options: Mapping[str, Any]) -> dict[str, Any]:
    """The members of the request, as glimpse.v1 has them."""
    members = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    if isinstance(schema := members.get("response_format"), Mapping):
        json_schema = chat_pb2.JsonSchema(name="answer", schema=json.dumps(schema))
        members["response_format"] = chat_pb2.ResponseFormat(json_schema=json_schema)
    if "chat_template_kwargs" in members:
        members["chat_template_kwargs"] = json.dumps(members["chat_template_kwargs"])
    if "reasoning_effort" in members:
        members["reasoning_effort"] = f"REASONING_EFFORT_{members['reasoning_effort'].upper()}"
    if "pooling" in members:
        members["pooling"] = f"POOLING_{members['pooling'].upper()}"
    return members
