"""Events of the Messages API: however a completion is cut, they join to its message, in the order that SDKs rely on.
Anthropic's types take them. Their import takes two seconds, in each process that collects tests.
"""

# ruff: noqa: PLC0415
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.engine.checkpoint.text.output_processor import Delta, ToolCallDelta
from glimpse.engine.protocol.messages import FinishReason
from glimpse.server.dialects.anthropic.dialect import ANTHROPIC
from glimpse.server.dialects.anthropic.response import EventRenderer, render_message
from glimpse.server.dialects.facade import event as as_event
from glimpse.server.generation.usage import Usage
from glimpse.server.rpc.text_chunks import JsonChunks
from tests.server.dialects.completions import completions


@cache
def event_type() -> TypeAdapter[Any]:
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


def message(deltas: Sequence[Delta], *, shows_thinking: bool = True) -> Any:
    from anthropic.types import Message

    rendered = anthropic_pb2.CreateMessageResponse(id="msg_1", model="m")
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    render_message(rendered, deltas, usage, shows_thinking=shows_thinking)
    document = ANTHROPIC.codec.encode(rendered)
    Message.model_validate_json(document, strict=True)
    return json.loads(document)


def events(deltas: Sequence[Delta], *, shows_thinking: bool = True) -> list[Any]:
    """The documents of a stream, after a look at the names of its events."""
    head = anthropic_pb2.CreateMessageResponse(id="msg_1", model="m")
    renderer = EventRenderer(head, Usage(prompt_tokens=3, completion_tokens=2), shows_thinking=shows_thinking)
    documents = JsonChunks(ANTHROPIC.codec.encode)
    found: list[Any] = []
    for event in (event for delta in deltas for event in renderer.render(delta)):
        name, data, *_ = as_event(documents.encode(event), named=True).split(b"\n")
        event_type().validate_json(data.removeprefix(b"data: "), strict=True)
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def joined(found: Sequence[Any]) -> Any:
    """The message that a client puts together, as the SDKs do."""
    start, *rest, end, stop = found
    assert (start["type"], end["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    assert start["message"]["stop_reason"] is None
    whole = start["message"]
    open_index = None
    for event in rest:
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                open_index = event["index"]
                assert open_index == len(whole["content"])
                whole["content"].append(event["content_block"] | {"pieces": []})
            case "content_block_delta":
                assert event["index"] == open_index
                (text,) = (value for name, value in event["delta"].items() if name != "type")
                if event["delta"]["type"] == "signature_delta":
                    whole["content"][-1]["signature"] = text
                    continue
                whole["content"][-1]["pieces"].append(text)
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
            case other:
                raise AssertionError(other)
    assert open_index is None
    return whole | end["delta"] | {"usage": end["usage"], "content": [_closed(block) for block in whole["content"]]}


def _closed(block: Any) -> Any:
    text = "".join(block.pop("pieces"))
    match block["type"]:
        case "tool_use":
            return block | {"input": json.loads(text or "{}")}
        case "thinking":
            return block | {"thinking": text}
        case _:
            return block | {"text": text}


@given(deltas=completions(), shows_thinking=st.booleans())
def test_events_join_to_the_message(deltas: list[Delta], shows_thinking: bool) -> None:
    found = message(deltas, shows_thinking=shows_thinking)
    assert joined(events(deltas, shows_thinking=shows_thinking)) == found


@given(deltas=completions())
def test_the_sdk_joins_them_too(deltas: list[Delta]) -> None:
    from anthropic.lib.streaming._messages import accumulate_event  # its streams' own

    snapshot, buffers = None, dict[int, bytes]()
    for found in events(deltas):
        event = event_type().validate_python(found)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    assert snapshot.to_dict()["content"] == message(deltas)["content"]
    assert snapshot.stop_reason == message(deltas)["stop_reason"]


@given(deltas=completions())
def test_nothing_of_a_completion_is_lost(deltas: list[Delta]) -> None:
    content = message(deltas)["content"]
    assert "".join(block.get("text", "") for block in content) == "".join(delta.text for delta in deltas)
    assert "".join(block.get("thinking", "") for block in content) == "".join(delta.reasoning for delta in deltas)
    begun = [call.id for delta in deltas for call in delta.tool_calls if call.id]
    assert [block["id"] for block in content if block["type"] == "tool_use"] == begun


def test_a_call_that_the_completion_ends_in_is_left_out() -> None:
    begun = ToolCallDelta(index=0, id="a", name="look", arguments='{"x": ')
    found = message([Delta(text="Look: "), Delta(tool_calls=(begun,)), Delta(finish=FinishReason.LENGTH)])
    assert found["content"] == [{"type": "text", "text": "Look: "}]
    assert found["stop_reason"] == "max_tokens"


def test_the_stop_sequence_is_told() -> None:
    found = message([Delta(text="a"), Delta(finish=FinishReason.STOP, stop_string="END")])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "END")
    assert (found["type"], found["role"]) == ("message", "assistant")
    assert found["usage"]["input_tokens"] == 3


def test_thinking_is_signed() -> None:
    deltas = [Delta(reasoning="Hm"), Delta(reasoning="m."), Delta(text="Yes."), Delta(finish=FinishReason.STOP)]
    same, other = message([Delta(reasoning="Hmm."), *deltas[2:]]), message([Delta(reasoning="Hm."), *deltas[2:]])
    (thinking, _), (again, _), (different, _) = (each["content"] for each in (message(deltas), same, other))
    assert thinking == again == {"type": "thinking", "thinking": "Hmm.", "signature": thinking["signature"]}
    assert len(thinking["signature"]) == 44
    assert thinking["signature"] != different["signature"]


@given(deltas=completions())
def test_blocks_of_hidden_thinking_have_their_signature_and_no_text(deltas: list[Delta]) -> None:
    shown, hidden = (message(deltas, shows_thinking=shown)["content"] for shown in (True, False))
    assert hidden == [block | {"thinking": ""} if block["type"] == "thinking" else block for block in shown]
