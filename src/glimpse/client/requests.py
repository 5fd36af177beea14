"""Builds requests and the arguments of calls, for both clients. Does no I/O except reading media files."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from glimpse.client.messages import EmbeddingInput, Prompt, RankedDocument, to_messages
from glimpse.client.openai_json import OptionError, to_message
from glimpse.client.options import (
    BatchOptions,
    CallOptions,
    ChatOptions,
    CompletionOptions,
    DetokenizeOptions,
    EmbedOptions,
    QuoteOptions,
    RerankOptions,
    ScoreOptions,
    TokenizeOptions,
    UploadOptions,
)
from glimpse.client.sources import ImageFile, read_file
from glimpse.v1 import batch_pb2, chat_pb2, completion_pb2, embedding_pb2, media_pb2, rerank_pb2, tokenizer_pb2

TextPrompt: TypeAlias = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""A text or its token ids, or several of them."""

_CHUNK_BYTES = 1 << 20
_SCHEMA_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
"""Values of `type` in a JSON Schema, which may be a list of them too. Response formats have others."""
_KEY_OF_HEADERS = re.compile(r"(?!-$)[!-\[\]-~]{1,128}")
"""Keys that the gateway takes from the body as they are; of others it makes a digest."""


def chat_request(
    prompt: Prompt, options: ChatOptions, *, answer: type[Message] | None = None, streaming: bool = False
) -> chat_pb2.CreateChatCompletionRequest:
    """Returns the request of `chat`, or of `stream` with the usage at its end. Reads media files.

    `answer` is the type of message to answer with.

    Raises OSError, and OptionError for an unknown option or a value that an option cannot have. All others here do too.
    """
    members = _members(options, messages=to_messages(prompt))
    if answer is not None:
        if "response_format" in members:
            raise OptionError("'response_format': cannot be combined with 'answer'")
        members["response_format"] = chat_pb2.ResponseFormat(protobuf=_message_type(answer))
    if streaming:
        members["stream_options"] = {"include_usage": True}
    return to_message(chat_pb2.CreateChatCompletionRequest, members)


def count_request(prompt: Prompt, options: QuoteOptions) -> chat_pb2.CountTokensRequest:
    """Returns the request of `count_tokens`. Reads media files."""
    return to_message(chat_pb2.CountTokensRequest, _members(options, messages=to_messages(prompt)))


def completion_request(prompt: TextPrompt, options: CompletionOptions) -> completion_pb2.CreateCompletionRequest:
    """Returns the request of `complete`."""
    is_single = isinstance(prompt, str) or all(isinstance(each, int) for each in prompt)
    members = _members(options, prompts=[prompt] if is_single else prompt)
    members["num_logprobs"] = members.pop("logprobs", None)
    return to_message(completion_pb2.CreateCompletionRequest, members)


def tokenize_request(prompt: Prompt, options: TokenizeOptions) -> tokenizer_pb2.TokenizeRequest:
    """Returns the request of `tokenize`. Reads media files."""
    given = {"prompt": prompt} if isinstance(prompt, str) else {"messages": to_messages(prompt)}
    return to_message(tokenizer_pb2.TokenizeRequest, _members(options, **given))


def detokenize_request(tokens: Sequence[int], options: DetokenizeOptions) -> tokenizer_pb2.DetokenizeRequest:
    """Returns the request of `detokenize`."""
    return to_message(tokenizer_pb2.DetokenizeRequest, _members(options, tokens=tokens))


def embedding_request(inputs: Sequence[EmbeddingInput], options: EmbedOptions) -> embedding_pb2.CreateEmbeddingsRequest:
    """Returns the request of `embed`. Reads media files. Raises TypeError for inputs of another type."""
    if isinstance(inputs, str):
        raise TypeError("'inputs': expected a list of inputs, got str; pass [text]")
    return to_message(embedding_pb2.CreateEmbeddingsRequest, _members(options, inputs=[*map(_to_input, inputs)]))


def _to_input(given: EmbeddingInput) -> embedding_pb2.EmbeddingInput:
    if isinstance(given, str):
        return embedding_pb2.EmbeddingInput(text=given)
    if given and all(isinstance(each, int) for each in given):
        return embedding_pb2.EmbeddingInput(token_ids=completion_pb2.TokenIds(ids=cast("Sequence[int]", given)))
    messages = to_messages(cast("Prompt", given))
    return embedding_pb2.EmbeddingInput(conversation=embedding_pb2.EmbeddingConversation(messages=messages))


def rerank_request(query: str, documents: Sequence[RankedDocument], options: RerankOptions) -> rerank_pb2.RerankRequest:
    """Returns the request of `rerank`. Reads media files. Raises TypeError for documents of another type."""
    if isinstance(documents, str):
        raise TypeError("'documents': expected a list of texts, got str; pass [text]")
    sent = [*map(_to_document, documents)]
    return to_message(rerank_pb2.RerankRequest, _members(options, query=query, documents=sent))


def _to_document(given: RankedDocument) -> object:
    """Returns a document, or what stands for one in JSON."""
    if isinstance(given, str | Mapping | rerank_pb2.RerankDocument):
        return given
    return rerank_pb2.RerankDocument(content=to_messages(given)[0].content)


def score_request(
    queries: str | Sequence[str], documents: str | Sequence[RankedDocument], options: ScoreOptions
) -> rerank_pb2.ScoreRequest:
    """Returns the request of `score`. Reads media files."""
    sent = documents if isinstance(documents, str) else [*map(_to_document, documents)]
    return to_message(rerank_pb2.ScoreRequest, _members(options, queries=queries, documents=sent))


def batch_request(requests: media_pb2.Media, endpoint: str, options: BatchOptions) -> batch_pb2.CreateBatchRequest:
    """Returns the request of `create_batch`."""
    request = batch_pb2.CreateBatchRequest(
        input_file_id=requests.upload_id,
        endpoint=endpoint,
        completion_window=options.get("completion_window", "24h"),
        metadata=options.get("metadata", {}),
    )
    if (seconds := options.get("output_seconds")) is not None:
        request.output_expires_after.seconds = seconds
    return request


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
        filename=options.get("filename", Path(source).name if isinstance(source, str | os.PathLike) else None),
        purpose=options.get("purpose"),
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


def _message_type(kind: Any) -> chat_pb2.MessageType:
    """Describes a message type. Raises OptionError if it is none."""
    if not (isinstance(kind, type) and issubclass(kind, Message)):
        raise OptionError(f"'answer': expected a protobuf message class, got {kind!r}")
    files = dict[str, FileDescriptorProto]()
    _add_files(kind.DESCRIPTOR.file, files)
    return chat_pb2.MessageType(
        name=kind.DESCRIPTOR.full_name,
        file_descriptor_set=FileDescriptorSet(file=files.values()).SerializeToString(),
    )


def _add_files(file: Any, files: dict[str, FileDescriptorProto]) -> None:
    """Adds a file after those that it imports. The server has those of google.protobuf."""
    if file.name in files or file.package == "google.protobuf":
        return
    for imported in file.dependencies:
        _add_files(imported, files)
    files[file.name] = FileDescriptorProto()
    file.CopyToProto(files[file.name])


def _members(options: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """The members of the request."""
    members = {name: value for name, value in options.items() if name not in CallOptions.__annotations__} | given
    if "response_format" in members:
        members["response_format"] = _response_format(members["response_format"])
    if (token_ids := members.get("allowed_token_ids")) is not None and not len(token_ids):
        # Messages have no empty list that differs from none, which allows all.
        raise OptionError("'allowed_token_ids': expected None or at least 1 token id, got 0")
    return members


def _response_format(given: Any) -> Any:
    """Returns a response format of a JSON Schema, of a pydantic model, or of OpenAI's JSON."""
    schema = given.model_json_schema() if hasattr(given, "model_json_schema") else given
    if not isinstance(schema, Mapping):
        return given
    kind = schema.get("type", "object")
    if isinstance(kind, str) and kind not in _SCHEMA_TYPES:
        return given
    return {"json_schema": {"name": "answer", "schema": schema}}
