"""The REST endpoints that answer a conversation: one request in the form of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
_SAME = ("temperature", "stream")
_LEFT_OUT = ("ignore_eos",)
"""Answers elsewhere are as long as the model likes."""

Form = Mapping[str, Any]


def as_messages(body: Form) -> Form | None:
    """Returns what asks /v1/messages as this body asks /v1/chat/completions; None if it has members of that alone.

    Members without a meaning are sent to both.
    """
    renamed = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}
    return _written(body, renamed, _member_of_messages)


def as_responses(body: Form) -> Form | None:
    """Returns what asks /v1/responses, as `as_messages` does for its endpoint."""
    return _written(body, {"max_completion_tokens": "max_output_tokens"}, _member_of_responses)


FORMS: Mapping[str, Callable[[Form], Form | None]] = {
    CHAT: lambda body: body,
    MESSAGES: as_messages,
    RESPONSES: as_responses,
}
"""The endpoints, and what writes a chat completion's body for each."""


def _written(body: Form, renamed: Mapping[str, str], member: Callable[[str, Any], Form | None]) -> Form | None:
    form: dict[str, Any] = {}
    for name, value in body.items():
        if name in _SAME or name.startswith("unknown"):
            form[name] = value
        elif name in renamed:
            form[renamed[name]] = value
        elif name not in _LEFT_OUT:
            written = member(name, value)
            if written is None:
                return None
            form |= written
    return form


def _member_of_messages(name: str, value: Any) -> Form | None:
    match name:
        case "messages":
            return {name: [{**message, "content": _content(message["content"], _block)} for message in value]}
        case "tools":
            return {name: [_tool(each["function"]) for each in value]}
        case "response_format" if "json_schema" in value:
            return {"output_config": {"format": {"type": "json_schema", "schema": value["json_schema"]["schema"]}}}
        case "tool_choice":
            return {name: {"type": value}}
        case _:
            return None


def _member_of_responses(name: str, value: Any) -> Form | None:
    match name:
        case "messages":
            return {"input": [{**message, "content": _content(message["content"], _part)} for message in value]}
        case "tools":
            return {name: [{"type": "function", **each["function"]} for each in value]}
        case "response_format" if "json_schema" in value:
            return {"text": {"format": {"type": "json_schema", **value["json_schema"]}}}
        case "tool_choice":
            return {name: value}
        case _:
            return None


def _content(content: str | Sequence[Form], written: Callable[[Form], Form]) -> str | list[Form]:
    return content if isinstance(content, str) else [written(part) for part in content]


def _block(part: Form) -> Form:
    match part["type"]:
        case "text":
            return {**part}
        case "file":
            return {"type": "document", "source": _source(part["file"]["file_data"])}
        case _:
            return {"type": "image", "source": _source(part["image_url"]["url"])}


def _source(url: str) -> Form:
    head, comma, data = url.partition(";base64,")
    if not comma:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}


def _part(part: Form) -> Form:
    match part["type"]:
        case "text":
            return {"type": "input_text", "text": part["text"]}
        case "file":
            return {"type": "input_file", **part["file"]}
        case _:
            return {"type": "input_image", "image_url": part["image_url"]["url"]}


def _tool(function: Form) -> Form:
    return {"name": function["name"], "input_schema": function.get("parameters", {"type": "object"})}
