"""What a client of the Responses API does: takes documents by OpenAI's types, and joins events."""

import json
from collections.abc import Sequence
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
RESPONSE: TypeAdapter[Any] = TypeAdapter(Response)
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}
OF_OTHER_VERSIONS = frozenset(("name", "bytes"))
"""Members that types of some versions lack, or types of events: a call's name, a token's bytes."""


def document_of(types: TypeAdapter[Any], text: bytes) -> Any:
    """A document that OpenAI's types take, without a member that they lack."""
    value = types.validate_json(text, strict=True)
    assert _extra(value) <= OF_OTHER_VERSIONS
    return json.loads(text)


def _extra(value: Any) -> set[str]:
    match value:
        case BaseModel():
            inner = (getattr(value, name) for name in type(value).model_fields)
            return set(value.model_extra or {}).union(*map(_extra, inner))
        case list():
            return set[str]().union(*map(_extra, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - any model's
        case _:
            return set()


def joined(found: Sequence[Any]) -> Any:
    """The response that a client puts together from deltas, as the SDKs do; what ends an item agrees with it."""
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    created, in_progress, *rest, end = found
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    output: list[Any] = []
    for event in rest:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(event["item"])
            continue
        assert event["output_index"] == len(output) - 1
        item = output[-1]
        assert event.get("item_id", item["id"]) == item["id"]
        _join(item, kind, event)
    assert end["type"] == ENDS[end["response"]["status"]]
    assert end["response"]["output"] == output
    return end["response"]


def _join(item: Any, kind: str, event: Any) -> None:
    match kind:
        case "content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(event["part"])
        case "output_text.delta" | "reasoning_text.delta":
            assert item["content"][-1]["type"] == kind.partition(".")[0]
            item["content"][-1]["text"] += event["delta"]
            if "logprobs" in item["content"][-1]:
                item["content"][-1]["logprobs"] += event["logprobs"]
        case "output_text.done" | "reasoning_text.done":
            assert event["text"] == item["content"][-1]["text"]
        case "content_part.done":
            assert event["part"] == item["content"][-1]
        case "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        case "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        case "output_item.done":
            assert event["item"] == item | {"status": event["item"]["status"]}
            item["status"] = event["item"]["status"]
        case other:
            raise AssertionError(other)
