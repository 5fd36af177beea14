"""Parses requests for embeddings."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.parse.content import parse_conversation
from glimpse.server.parse.generation import check_priority, check_token_ids
from glimpse.server.parse.prompt import with_options
from glimpse.server.request import (
    Conversation,
    EmbeddingPrompt,
    EmbeddingRequest,
    PromptSource,
    TextPrompt,
    TokenPrompt,
)
from glimpse.server.served_model import ServedModel
from glimpse.v1 import content_pb2, embedding_pb2

_MODES = {
    embedding_pb2.POOLING_LAST_TOKEN: PoolingMode.LAST_TOKEN,
    embedding_pb2.POOLING_MEAN: PoolingMode.MEAN,
    embedding_pb2.POOLING_TOKEN: PoolingMode.TOKEN,
}
MAX_RESPONSE_BYTES = 64 << 20
"""Less than what the server and the gateway send as one response."""
_FLOAT32_BYTES, _BASE64_BYTES, _JSON_BYTES = 4, 16 / 3, 24
"""Bytes of a value in a response: in JSON, at most the digits of a float64, a sign, an exponent and a comma."""
_CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "media_io_options",
                "media_processor_options")  # fmt: skip


def parse_embedding_request(
    request: embedding_pb2.CreateEmbeddingsRequest, call: CallContext, model: ServedModel
) -> EmbeddingRequest:
    """Parses a request. Raises InvalidRequest."""
    check_bounds(request)
    check_priority(request.priority, call.tenant.limits)
    if bool(request.inputs) == bool(request.messages):
        got = "both" if request.inputs else "neither"
        code = "conflicting_values" if request.inputs else "missing_value"
        raise InvalidRequest("inputs", f"'inputs': expected either 'inputs' or 'messages', got {got}", code)
    inputs = tuple(_parse_inputs(request, call, model))
    _check_fields_apply(request, [each.source for each in inputs])
    return EmbeddingRequest(
        inputs=inputs,
        pooling=_parse_pooling(request, model),
        as_base64=request.encoding_format == embedding_pb2.ENCODING_FORMAT_BASE64,
        priority=request.priority,
        cache_salt=call.tenant.namespace(request.cache_salt),
        adapter=model.adapter_of(request.model),
    )


def check_response_size(request: EmbeddingRequest, model: ServedModel, *, is_json: bool) -> EmbeddingRequest:
    """Returns the request with the most tokens that may have a vector.

    Raises:
        InvalidRequest: the embeddings would not fit into a response, before they are computed.
    """
    num_values = request.pooling.dimensions or model.embedding_size
    value_bytes = _BASE64_BYTES if request.as_base64 else _JSON_BYTES if is_json else _FLOAT32_BYTES
    most = int(MAX_RESPONSE_BYTES / (num_values * value_bytes))
    if request.pooling.mode is PoolingMode.TOKEN:
        return replace(request, max_tokens=most)
    if len(request.inputs) > most:
        raise InvalidRequest(
            "inputs",
            f"expected at most {most} inputs of {num_values} values each, which fill a response of 64 MiB, got "
            f"{len(request.inputs)}; send several requests, or ask for base64",
        )
    return request


def _parse_inputs(
    request: embedding_pb2.CreateEmbeddingsRequest, call: CallContext, model: ServedModel
) -> Iterator[EmbeddingPrompt]:
    if request.messages:
        yield _parse_conversation(request, request.messages, call, model, "messages")
    for index, each in enumerate(request.inputs):
        path = f"inputs[{index}]"
        match each.WhichOneof("input"):
            case "text":
                special = request.add_special_tokens if request.HasField("add_special_tokens") else True
                text = TextPrompt(text=each.text, field=f"{path}.text", add_special_tokens=special)
                yield EmbeddingPrompt(source=text, field=f"{path}.text")
            case "token_ids":
                field = f"{path}.token_ids"
                check_token_ids(each.token_ids.ids, model.vocab_size, f"{field}.ids")
                yield EmbeddingPrompt(source=TokenPrompt(token_ids=tuple(each.token_ids.ids)), field=field)
            case "conversation":
                yield _parse_conversation(
                    request, each.conversation.messages, call, model, f"{path}.conversation.messages"
                )
            case _:
                raise InvalidRequest(path, "expected a text, token ids or a conversation, got nothing", "missing_value")


def _parse_conversation(
    request: embedding_pb2.CreateEmbeddingsRequest,
    messages: Iterable[content_pb2.Message],
    call: CallContext,
    model: ServedModel,
    field: str,
) -> EmbeddingPrompt:
    conversation = parse_conversation(messages, model, name=request.model, field=field)
    return EmbeddingPrompt(source=with_options(conversation, request, model, call, begins_answer=False), field=field)


def _check_fields_apply(request: embedding_pb2.CreateEmbeddingsRequest, sources: Sequence[PromptSource]) -> None:
    """Refuses options that apply to none of the inputs."""
    if request.add_special_tokens and not any(isinstance(source, TextPrompt) for source in sources):
        raise InvalidRequest("add_special_tokens", "expected a text among the inputs, since it applies to texts only")
    if any(isinstance(source, Conversation) for source in sources):
        return
    present = {field.name for field, _ in request.ListFields()}
    for name in _CHAT_FIELDS:
        if name in present:
            raise InvalidRequest(name, "expected a conversation among the inputs, since it applies to these only")


def _parse_pooling(request: embedding_pb2.CreateEmbeddingsRequest, model: ServedModel) -> PoolingParams:
    if request.dimensions > model.embedding_size:
        message = (
            f"expected at most {model.embedding_size}, the size of the model's embeddings, got {request.dimensions}"
        )
        raise InvalidRequest("dimensions", message)
    if request.encoding_format not in embedding_pb2.EncodingFormat.values():
        raise InvalidRequest("encoding_format", f"expected a known format, got {request.encoding_format}")
    return PoolingParams(
        mode=_parse_mode(request, model.pooling.mode),
        normalize=request.normalize if request.HasField("normalize") else model.pooling.normalize,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
    )


def _parse_mode(request: embedding_pb2.CreateEmbeddingsRequest, default: PoolingMode) -> PoolingMode:
    if not request.pooling:
        return default
    if request.pooling not in _MODES:
        raise InvalidRequest("pooling", f"expected a known pooling, got {request.pooling}")
    mode, is_late = _MODES[request.pooling], default is PoolingMode.TOKEN
    if (mode is PoolingMode.TOKEN) != is_late:
        expected = "token, as the model is" if is_late else "last_token or mean, as the model is not"
        raise InvalidRequest("pooling", f"expected {expected} for late interaction, got {mode}", "unsupported")
    return mode
