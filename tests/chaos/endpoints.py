"""The two REST endpoints that answer a conversation: one request in the form of each."""

from collections.abc import Mapping, Sequence
from typing import Any

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
_SAME = ("temperature", "stream")
_LEFT_OUT = ("ignore_eos",)
"""Answers there are as long as the model likes."""
_RENAMED = {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"}


def as_messages(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what asks /v1/messages as this body asks /v1/chat/completions; None if it has members of that alone.

    Members without a meaning are sent to both.
    """
    form: dict[str, Any] = {}
    for name, value in body.items():
        if name == "messages":
            form[name] = [{**message, "content": _content(message["content"])} for message in value]
        elif name == "tools":
            form[name] = [_tool(each["function"]) for each in value]
        elif name == "response_format" and "json_schema" in value:
            form["output_config"] = {"format": {"type": "json_schema", "schema": value["json_schema"]["schema"]}}
        elif name == "tool_choice":
            form[name] = {"type": value}
        elif name in _SAME or name.startswith("unknown"):
            form[name] = value
        elif name in _RENAMED:
            form[_RENAMED[name]] = value
        elif name not in _LEFT_OUT:
            return None
    return form


def _content(content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_block(part) for part in content]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {**part}
    url = part["image_url"]["url"]
    head, comma, data = url.partition(";base64,")
    if not comma:
        return {"type": "image", "source": {"type": "url", "url": url}}
    source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "image", "source": source}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": function["name"], "input_schema": function.get("parameters", {"type": "object"})}
