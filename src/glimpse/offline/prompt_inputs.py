"""Makes documents of the prompts and conversations that callers of `LLM` pass, in vLLM's and OpenAI's formats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.media.inputs import MediumInput
from glimpse.offline.documents import json_text, parse
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.media.media_defaults import check_sampling, split_kwargs
from glimpse.offline.media.media_inputs import DocumentMedia, content_parts, prompt_parts
from glimpse.server.parse.chat import parse_chat
from glimpse.server.parse.completion import parse_completion
from glimpse.server.parse.pooling import parse_embedding_request
from glimpse.server.request import Conversation, PromptSource, TextPrompt
from glimpse.server.served_model import ServedModel
from glimpse.v1.chat_pb2 import CreateChatCompletionRequest
from glimpse.v1.completion_pb2 import CreateCompletionRequest
from glimpse.v1.embedding_pb2 import CreateEmbeddingsRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfflineRequest:
    """A prompt and its media."""

    prompt: PromptSource
    media: tuple[MediumInput, ...]
    """In prompt order."""
    field: str
    """The path of the request in error messages."""


def parse_prompt(prompt: object, field: str, model: ServedModel) -> OfflineRequest:
    """Parses a string, or a dict of `prompt` or `prompt_token_ids` and optionally the prompt's media.

    Raises:
        InputError: it is something else.
    """
    known = ("prompt", "prompt_token_ids", "multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
    fields = known_fields({"prompt": prompt} if isinstance(prompt, str) else prompt, field, known=known)
    match fields:
        case {"prompt": str() as text, **rest} if "prompt_token_ids" not in rest:
            name, value = "prompt", text
        case {"prompt_token_ids": Sequence() as token_ids, **rest} if "prompt" not in rest:
            name, value = "prompt_token_ids", token_ids
        case _:
            raise InputError(field, "expected either prompt, a string, or prompt_token_ids, a list of integers")
    parse_request = partial(parse_completion, model=model, streaming=False)
    names = {"prompt[0]": f"{field}.{name}", "prompt": f"{field}.{name}"}
    document = {"prompt": [value]}
    parsed = parse(document, CreateCompletionRequest, parse_request, call=field, names=names).generation
    return OfflineRequest(prompt=parsed.prompts[0], media=_parse_media(fields, field, model), field=field)


def _parse_media(fields: Mapping[str, Any], field: str, model: ServedModel) -> tuple[MediumInput, ...]:
    """Parses the media of a prompt as those of a message."""
    media, kwargs_field = DocumentMedia(), f"{field}.mm_processor_kwargs"
    parts = list(prompt_parts(fields.get("multi_modal_data") or {}, fields.get("multi_modal_uuids") or {}, field))
    videos = [index for index, given in enumerate(parts) if given.part["type"] == "video"]
    kwargs, rates, samples = split_kwargs(fields.get("mm_processor_kwargs") or {}, videos, kwargs_field)
    content: list[Mapping[str, object]] = []
    for index, given in enumerate(parts):
        path = f"messages[0].content[{index}]"
        media.names |= {f"{path}.fps": f"{kwargs_field}.fps", f"{path}.uuid": given.uuid_field}
        media.names[f"{path}.{given.part['type']}.url"] = given.field
        content.append({**media.part(given.part, path, given.field), "fps": rates.get(index)})
        media.names[path] = given.field
    parsed: tuple[MediumInput, ...] = ()
    if content or kwargs:
        document = {"messages": [{"role": "user", "content": content or ""}], "mm_processor_kwargs": kwargs}
        names = {**media.names, "messages": field, "mm_processor_kwargs": kwargs_field}
        parsed = media.put_back(_parse_chat(document, media, names, model).media, kwargs_field)
    check_sampling(samples, parsed, kwargs_field)
    return parsed


def parse_conversations(
    messages: Sequence[object], options: Mapping[str, object], model: ServedModel
) -> list[OfflineRequest]:
    """Parses one conversation or several in OpenAI's format. Raises InputError.

    Args:
        options: further members of the request to complete a conversation.
    """
    if any(isinstance(message, Mapping) for message in messages):
        return [parse_conversation(messages, "messages", options, model)]
    fields = (f"conversations[{index}].messages" for index in range(len(messages)))
    return [parse_conversation(each, field, options, model) for each, field in zip(messages, fields, strict=True)]


def parse_conversation(
    messages: object, field: str, options: Mapping[str, object], model: ServedModel, options_field: str = ""
) -> OfflineRequest:
    """Parses messages in OpenAI's format.

    Raises:
        InputError: a message or an option is something else.
    """
    media = DocumentMedia()
    document = {"messages": _messages(messages, field, media), **options}
    names = {**media.names, "messages": field, **{name: f"{options_field}{name}" for name in options}}
    conversation = _parse_chat(document, media, names, model)
    own = media.put_back(conversation.media, f"{options_field}mm_processor_kwargs")
    return OfflineRequest(prompt=conversation, media=own, field=field)


def _parse_chat(
    document: Mapping[str, object], media: DocumentMedia, names: Mapping[str, str], model: ServedModel
) -> Conversation:
    parse_request = partial(parse_chat, model=model, streaming=False)
    parsed = parse(
        document, CreateChatCompletionRequest, parse_request, call="messages", names=names, replace=media.handle
    )
    return cast(Conversation, parsed.generation.prompts[0])


def _messages(messages: object, field: str, media: DocumentMedia) -> object:
    """Returns the messages of a document."""
    if not isinstance(messages, list | tuple):
        return messages
    return [
        _message(message, f"messages[{index}]", f"{field}[{index}]", media) if isinstance(message, Mapping) else message
        for index, message in enumerate(cast("Sequence[Any]", messages))
    ]


def _message(message: Mapping[str, Any], path: str, field: str, media: DocumentMedia) -> Mapping[str, object]:
    content = content_parts(message.get("content"), f"{path}.content", media, f"{field}.content")
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        calls = [_call(call, f"{field}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return {**message, "content": content, "tool_calls": calls}


def _call(call: object, field: str) -> object:
    """Returns a tool call, whose arguments may be a dict in Python."""
    match call:
        case {"function": {"arguments": Mapping() as arguments, **function}, **rest}:
            text = json_text(arguments, f"{field}.function.arguments")
            return {**rest, "function": {**function, "arguments": text}}
        case _:
            return call


def parse_input(given: object, field: str, model: ServedModel, *, add_special_tokens: bool) -> OfflineRequest:
    """Parses a prompt as `LLM.generate` takes it, or a dict with the `messages` of a conversation.

    Raises:
        InputError: it is something else.
    """
    if isinstance(given, Mapping) and "messages" in given:
        fields = known_fields(given, field, known=("messages", "add_generation_prompt", "chat_template_kwargs"))
        options = {"add_generation_prompt": False, **fields}
        return parse_conversation(options.pop("messages"), f"{field}.messages", options, model, f"{field}.")
    request = parse_prompt(given, field, model)
    if not isinstance(request.prompt, TextPrompt):
        return request
    return replace(request, prompt=replace(request.prompt, add_special_tokens=add_special_tokens))


def parse_pooling(options: Mapping[str, object], model: ServedModel) -> PoolingParams:
    """Parses the members of a request for embeddings that stand beside its input. Raises InputError."""
    parse_request = partial(parse_embedding_request, model=model)
    return parse({"input": "", **options}, CreateEmbeddingsRequest, parse_request, call="LLM.embed()").pooling
