"""Events of the Responses API: however a completion is cut, they join to its response, and OpenAI's types take them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText, ToolCallDelta, TopToken
from glimpse.engine.protocol.messages import FinishReason
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.openai.v1 import responses_pb2
from glimpse.server.dialects.facade import event as as_event
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.dialects.responses.response import ResponseRenderer, begin_response, render_response
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import CompletionHead
from glimpse.server.rpc.text_chunks import JsonChunks
from tests.server.dialects.completions import completions
from tests.server.dialects.responses_client import EVENT, RESPONSE, document_of, joined


def begun() -> responses_pb2.Response:
    head = CompletionHead(id="", created=5, model="m")
    return begin_response(responses_pb2.CreateResponseRequest(), head, SamplingParams(), "1")


def usage() -> Usage:
    return Usage(prompt_tokens=3, completion_tokens=2)


def response(deltas: Sequence[Delta]) -> Any:
    rendered = begun()
    render_response(rendered, deltas, usage())
    return document_of(RESPONSE, OPENAI.codec.encode(rendered))


def events(deltas: Sequence[Delta]) -> list[Any]:
    """The documents of a stream, after a look at the names of its events."""
    renderer = ResponseRenderer(begun(), usage())
    documents = JsonChunks(OPENAI.codec.encode)
    found: list[Any] = []
    for event in (event for delta in deltas for event in renderer.render(delta)):
        name, data, *_ = as_event(documents.encode(event), named=True).split(b"\n")
        found.append(document_of(EVENT, data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def without_times(found: Any) -> Any:
    return found | {"completed_at": None}


@given(deltas=completions())
def test_events_join_to_the_response(deltas: list[Delta]) -> None:
    assert without_times(joined(events(deltas))) == without_times(response(deltas))


@given(deltas=completions())
def test_nothing_of_a_completion_is_lost(deltas: list[Delta]) -> None:
    output = response(deltas)["output"]
    parts = [part for item in output for part in item.get("content", [])]
    for kind, text in (
        ("output_text", "".join(delta.text for delta in deltas)),
        ("reasoning_text", "".join(delta.reasoning for delta in deltas)),
    ):
        assert "".join(part["text"] for part in parts if part["type"] == kind) == text
    begun = [call.id for delta in deltas for call in delta.tool_calls if call.id]
    assert [item["call_id"] for item in output if item["type"] == "function_call"] == begun
    assert len({item["id"] for item in output}) == len(output)


def test_a_limit_cuts_the_last_item() -> None:
    call = ToolCallDelta(index=0, id="a", name="look", arguments='{"x": ')
    found = response([Delta(text="Look: "), Delta(tool_calls=(call,)), Delta(finish=FinishReason.LENGTH)])
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]
    assert found["output"][1]["arguments"] == '{"x": '
    assert found["completed_at"] is None


def test_an_empty_completion_is_an_empty_message() -> None:
    (item,) = response([Delta(finish=FinishReason.STOP)])["output"]
    assert [part["text"] for part in item["content"]] == [""]


def token(text: str) -> TokenText:
    top = (TopToken(1, text, text.encode(), -0.5),)
    return TokenText(token_id=1, text=text, bytes=text.encode(), logprob=-0.5, top=top)


def test_log_probabilities_are_those_of_the_text() -> None:
    deltas = [
        Delta(reasoning="so", tokens=(token("so"),)),
        Delta(tokens=(token("</th"),)),
        Delta(reasoning=".", text="A", tokens=(token("."), token("ink>"), token("A"))),
        Delta(tokens=(token(" "),)),
        Delta(text=" tree", tokens=(token("tree"),)),
        Delta(tokens=(token("."),), finish=FinishReason.STOP),
    ]
    found = joined(events(deltas))
    assert found["usage"]["total_tokens"] == 5
    (part,) = found["output"][1]["content"]
    assert [each["token"] for each in part["logprobs"]] == ["A", " ", "tree", "."]
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "A", "logprob": -0.5, "bytes": [65]}]


def test_a_stream_that_fails_says_so() -> None:
    renderer = ResponseRenderer(begun(), usage())
    told = [*renderer.render(Delta(text="a")), *renderer.fail("server_error", "The engine died.")]
    found = [document_of(EVENT, JsonChunks(OPENAI.codec.encode).encode(event)) for event in told]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["type"] == "response.failed"
    failed = found[-1]["response"]
    assert (failed["status"], failed["error"]["message"]) == ("failed", "The engine died.")
    assert failed["output"][0]["status"] == "incomplete"
