"""Responses match the OpenAPI document: schemathesis sends valid and invalid requests.

CI sends the same 200 requests each time. SCHEMATHESIS_EXAMPLES=2000 sends more, and new ones each time.
"""

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from glimpse.server.media_settings import MediaSettings
from tests.e2e.stack import ROOT, Stack, start_echo_stack

DOCUMENT = json.loads((ROOT / "gateway" / "openapi.json").read_text())
NUM_EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "200"))
ALLOWED, FORBIDDEN = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
SHARES = {
    ("POST", "/v1/chat/completions", ALLOWED): 0.1,
    ("POST", "/v1/chat/completions", FORBIDDEN): 0.1,
    ("POST", "/v1/responses", ALLOWED): 0.1,
    ("POST", "/v1/responses", FORBIDDEN): 0.1,
    ("POST", "/v1/messages", ALLOWED): 0.05,
    ("POST", "/v1/messages", FORBIDDEN): 0.05,
    ("POST", "/v1/messages/count_tokens", ALLOWED): 0.025,
    ("POST", "/v1/messages/count_tokens", FORBIDDEN): 0.025,
    ("POST", "/v1/completions", ALLOWED): 0.05,
    ("POST", "/v1/completions", FORBIDDEN): 0.05,
    ("POST", "/v1/embeddings", ALLOWED): 0.05,
    ("POST", "/v1/embeddings", FORBIDDEN): 0.05,
    ("POST", "/v1/rerank", ALLOWED): 0.025,
    ("POST", "/v1/rerank", FORBIDDEN): 0.025,
    ("POST", "/v1/score", ALLOWED): 0.025,
    ("POST", "/v1/score", FORBIDDEN): 0.025,
    ("POST", "/tokenize", ALLOWED): 0.025,
    ("POST", "/tokenize", FORBIDDEN): 0.025,
    ("POST", "/detokenize", ALLOWED): 0.05,
    ("POST", "/detokenize", FORBIDDEN): 0.05,
    ("GET", "/v1/files", ALLOWED): 0.025,
    ("GET", "/v1/files", FORBIDDEN): 0.025,
    ("GET", "/v1/files/{upload_id}", ALLOWED): 0.025,
    ("DELETE", "/v1/files/{upload_id}", ALLOWED): 0.025,
    ("GET", "/v1/files/{upload_id}/content", ALLOWED): 0.025,
    ("GET", "/v1/models/{model}", ALLOWED): 0.05,  # any text may be a model's name
}
"""Operation and kind of request → its share of the requests."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
EVENTS = "text/event-stream"
TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def echo_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Answers at no cost, since most requests allow up to 128 answers of any length. It has no network."""
    running = start_echo_stack(tmp_path_factory.mktemp("echo"), MediaSettings(media_egress="off"))
    yield running
    assert running.stop() == 0


@functools.cache
def operations() -> Any:
    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.parametrize(("verb", "path", "mode"), SHARES)
def test_responses_match_the_openapi_document(echo_stack: Stack, verb: str, path: str, mode: GenerationMode) -> None:
    cases: Any = operations()[path][verb].as_strategy(generation_mode=mode)

    @settings(
        max_examples=round(NUM_EXAMPLES * SHARES[verb, path, mode]),
        derandomize=NUM_EXAMPLES <= 200,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(cases)
    def holds(case: Any) -> None:
        answer = case.call(base_url=echo_stack.url, timeout=TIMEOUT_SECONDS)
        is_stream = any(value.startswith(EVENTS) for value in answer.headers.get("content-type", []))
        case.validate_response(answer, checks=CHECKS if is_stream else [*CHECKS, response_schema_conformance])
        if is_stream:
            check_events(answer.content.decode(), path)

    holds()


def check_events(body: str, path: str) -> None:
    """Each event matches the schema; the last says that the stream is complete, or why not."""
    *events, end, rest = body.split("\n\n")
    assert rest == ""
    assert end.startswith(ENDS[path]) or "error" in parse_event(end)
    for event in events:
        VALIDATORS[path].validate(parse_event(event))


def parse_event(event: str) -> Any:
    lines = dict(line.split(": ", 1) for line in event.split("\n"))
    data = json.loads(lines.pop("data"))
    assert lines == ({"event": data["type"]} if "event" in lines else {})
    return data


def event_validator(path: str) -> Any:
    answers = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]
    return jsonschema.Draft202012Validator(
        {**answers[EVENTS]["schema"]["contentSchema"], "components": DOCUMENT["components"]}
    )


ENDS = {
    "/v1/chat/completions": "data: [DONE]",
    "/v1/completions": "data: [DONE]",
    "/v1/responses": ("event: response.completed\n", "event: response.incomplete\n"),
    "/v1/messages": 'event: message_stop\ndata: {"type":"message_stop"}',
}
VALIDATORS = {path: event_validator(path) for path in ENDS}
