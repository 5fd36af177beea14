"""Options of the clients' methods."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from glimpse.v1 import chat_pb2, content_pb2, generation_pb2


class CallOptions(TypedDict, total=False):
    """Options of every call."""

    timeout: float | None
    """The deadline, in seconds from now, retries included. Default: the client's."""
    request_id: str
    """Appears in the server's log and as the response's id. Default: the server chooses one."""


class UploadOptions(CallOptions, total=False):
    """Options of `upload`."""

    cache_salt: str | None
    """The cache namespace: only requests with the same salt find the upload."""
    ttl_seconds: int | None
    """How long the server keeps it. Default, and the most: the server's `--upload-ttl`."""
    filename: str
    """The file's name, at most 255 bytes. Default: that of a path."""
    purpose: str
    """What it is for, as of OpenAI's files: "vision", "batch" and others. Default: "user_data"."""
    prompt_cache_key: str
    """Where several servers share no media store: the key of the requests that will use it, which the gateway sends to
    the same server."""


class UploadedOptions(CallOptions, total=False):
    """Options of calls about uploads."""

    cache_salt: str | None
    """The salt under which they are stored."""


class ListUploadsOptions(UploadedOptions, total=False):
    """Options of `uploads`."""

    purpose: str | None
    """Only uploads for this purpose."""
    limit: int | None
    """The most uploads, 1 to 10000. Default: 1000."""
    after: str | None
    """The id of the upload after which the list begins."""
    order: Literal["asc", "desc"] | None
    """By the time of creation. Default: "desc", the latest first."""


class BatchOptions(CallOptions, total=False):
    """Options of `create_batch`."""

    completion_window: str
    """The time for all answers, such as "24h", at most "7d". Default: "24h"."""
    metadata: Mapping[str, str]
    """The caller's own records, at most 16."""
    output_seconds: int | None
    """How long the answers are kept. Default, and the most: the server's `--batch-ttl`."""


class ListBatchesOptions(CallOptions, total=False):
    """Options of `batches`."""

    limit: int | None
    """The most batches, 1 to 100. Default: 20."""
    after: str | None
    """The id of the batch after which the list begins."""


class ModelOptions(CallOptions, total=False):
    """Options of every call that a model serves."""

    model: str
    """Default: the model that is served."""
    cache_salt: str
    """The cache namespace of uuids and uploads."""


class ConversationOptions(ModelOptions, total=False):
    """Options of calls with conversations."""

    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any]
    """Further variables of the chat template."""
    media_io_options: content_pb2.MediaIoOptions | Mapping[str, Any]
    """Defaults for reading the conversation's media."""
    media_processor_options: content_pb2.MediaProcessorOptions | Mapping[str, Any]
    """Defaults for resizing and sampling the conversation's media."""


class CountOptions(ConversationOptions, total=False):
    """Options of `count_tokens`, as in `ChatOptions`: those that change the prompt."""

    tools: Sequence[chat_pb2.Tool | Mapping[str, Any]]
    """The tools that the model may call, also as OpenAI's JSON."""
    tool_choice: chat_pb2.ToolChoice | Literal["none", "auto", "required"] | Mapping[str, Any]
    """Whether and which tool is called."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    """How long the model thinks, for models whose chat template supports it."""


class QuoteOptions(CountOptions, total=False):
    """Options of `count_tokens`."""

    quote: bool
    """Whether the answer tells what the request would cost now: tokens of each part, what is cached, the time."""


class EmbedOptions(ConversationOptions, total=False):
    """Options of `embed`. Those without a comment are documented in glimpse/v1/embedding.proto."""

    dimensions: int
    """Embeddings are cut to their first values, then normalized."""
    normalize: bool
    pooling: Literal["last_token", "mean", "token"]
    """Which hidden states become the embedding. Default: the checkpoint's choice."""
    add_special_tokens: bool
    priority: int
    user: str


class ScoreOptions(ModelOptions, total=False):
    """Options of `score`. Those without a comment are documented in glimpse/v1/rerank.proto."""

    instruction: str
    """What the documents are to be good for."""
    priority: int
    use_activation: bool
    user: str


class RerankOptions(ScoreOptions, total=False):
    """Options of `rerank`. Those without a comment are documented in glimpse/v1/rerank.proto."""

    top_n: int
    """The largest number of results. Default: all documents."""
    return_documents: bool
    """Whether results repeat their documents. Default: true."""


class GenerationOptions(ModelOptions, total=False):
    """Options of what is generated. Those without a comment are documented in glimpse/v1/generation.proto."""

    max_completion_tokens: int
    """The largest number of tokens in an answer."""
    max_tokens: int
    """Former name of the same option."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | Mapping[str, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    prompt_logprobs: int
    min_tokens: int
    ignore_eos: bool
    include_stop_str_in_output: bool
    return_token_ids: bool
    return_timings: bool
    n: int
    skip_special_tokens: bool
    response_format: chat_pb2.ResponseFormat | Mapping[str, Any] | type
    """A JSON Schema that the answer must match, a pydantic model that has one, or another response format, also as
    OpenAI's JSON."""
    structured_outputs: generation_pb2.StructuredOutputs | Mapping[str, Any]
    """A regular expression, choices or a grammar that the answer must match."""
    priority: int
    """Requests with a smaller number are scheduled first. Default 0."""
    prompt_cache_key: str
    """The gateway sends requests with the same key to the same replica."""
    user: str


class ChatOptions(GenerationOptions, CountOptions, total=False):
    """Options of `chat` and `stream`."""

    logprobs: bool
    top_logprobs: int
    parallel_tool_calls: bool
    """Whether an answer may call several tools. Default true."""
    include_reasoning: bool
    """Whether answers carry the model's reasoning. Default true."""
    thinking_token_budget: int
    """The most tokens of the reasoning."""
    metadata: Mapping[str, str]
    """The caller's notes, which the response repeats."""
    service_tier: chat_pb2.ServiceTier | Literal["auto", "default"]
    safety_identifier: str
    grounding: bool
    """Whether answers carry the boxes and points in their texts, in pixels of the image that was sent."""


class CompletionOptions(GenerationOptions, total=False):
    """Options of `complete`."""

    logprobs: int
    """How many of the most likely tokens the answer has for each of its own."""
    echo: bool
    """Whether the answer begins with the prompt."""
    add_special_tokens: bool
    """Whether texts begin with the tokenizer's tokens for that."""


class TokenizeOptions(ConversationOptions, total=False):
    """Options of `tokenize`; those of the template are for conversations."""

    tools: Sequence[chat_pb2.Tool | Mapping[str, Any]]
    add_special_tokens: bool
    """Whether a text begins with the tokenizer's tokens for that."""
    return_token_strs: bool
    """Whether the answer has the text of each token too."""


class DetokenizeOptions(CallOptions, total=False):
    """Options of `detokenize`."""

    model: str
    """Default: the model that is served."""
