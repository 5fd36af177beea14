"""Builds requests and the arguments of calls, for both clients. Does no I/O except reading media files."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, TypedDict

from glimpse.client.messages import ImageFile, Prompt, read_file, to_messages
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2, media_pb2

_CHUNK_BYTES = 1 << 20


class CallOptions(TypedDict, total=False):
    """Options of every call."""

    timeout: float | None
    """The deadline, in seconds from now, retries included. Default: the client's."""
    request_id: str
    """Appears in the server's log and as the response's id. Default: the server chooses one."""


class CountOptions(CallOptions, total=False):
    """Options of `count_tokens`."""

    model: str
    """Default: the model that is served."""
    cache_salt: str
    """The cache namespace of uuids and uploads."""


class ChatOptions(CountOptions, total=False):
    """Options of `chat` and `stream`. Those without a comment are documented in glimpse/v1/generation.proto."""

    max_completion_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    min_tokens: int
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    n: int
    skip_special_tokens: bool
    response_format: chat_pb2.ResponseFormat | Mapping[str, Any]
    """A JSON Schema that the answer must match, or another response format."""
    structured_outputs: generation_pb2.StructuredOutputs
    """A regular expression, choices or a grammar that the answer must match."""
    tools: Sequence[chat_pb2.Tool]
    """The tools that the model may call."""
    tool_choice: chat_pb2.ToolChoice
    """Whether and which tool is called."""
    parallel_tool_calls: bool
    """Whether an answer may call several tools. Default true."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"]
    """How long the model thinks, for models whose chat template supports it."""
    priority: int
    """Requests with a smaller number are scheduled first. Default 0."""
    prompt_cache_key: str
    """The gateway sends requests with the same key to the same replica."""
    metadata: Mapping[str, str]
    """The caller's notes, which the response repeats."""
    service_tier: chat_pb2.ServiceTier
    user: str
    safety_identifier: str
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]
    """Further variables of the chat template."""
    media_io_options: content_pb2.MediaIoOptions
    """Defaults for reading the conversation's media."""
    media_processor_options: content_pb2.MediaProcessorOptions
    """Defaults for resizing and sampling the conversation's media."""


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


def upload_requests(
    source: ImageFile, *, cache_salt: str | None, ttl_seconds: int | None
) -> Iterator[media_pb2.UploadMediaRequest]:
    """Reads the file and returns an upload's header and chunks. Raises OSError."""
    data = read_file(source)
    header = media_pb2.UploadHeader(
        sha256=hashlib.sha256(data).digest(), size_bytes=len(data), cache_salt=cache_salt, ttl_seconds=ttl_seconds
    )
    chunks = (data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES))
    return chain(
        [media_pb2.UploadMediaRequest(header=header)], (media_pb2.UploadMediaRequest(chunk=chunk) for chunk in chunks)
    )


def call_arguments(options: CallOptions, default_timeout: float | None) -> dict[str, Any]:
    """Returns the keyword arguments of the gRPC call."""
    metadata = [("x-request-id", options["request_id"])] if "request_id" in options else None
    return {"timeout": options.get("timeout", default_timeout), "metadata": metadata}


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
    return members
