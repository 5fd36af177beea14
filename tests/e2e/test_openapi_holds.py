"""Responses match the OpenAPI document: schemathesis sends valid and invalid requests.

CI sends the same few requests each time. Where a path has an id, half of them have that of something that exists.
New ones each time, for some ten minutes:

    SCHEMATHESIS_EXAMPLES=2000 python -m pytest tests/e2e/test_openapi_holds.py -o faulthandler_timeout=0 --timeout=0
"""

import functools
import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
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
NUM_EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "60"))
ALLOWED, FORBIDDEN = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
WEIGHTS = {"/v1/chat/completions": 6, "/v1/responses": 6, "/v1/messages": 6, "/v1/completions": 3, "/v1/embeddings": 3}
"""Path → how many requests it gets, relative to the others."""
IDS = {"response_id": "/v1/responses", "upload_id": "/v1/files", "batch_id": "/v1/batches"}
"""Parameter of a path → where what it names is created."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
EVENTS = "text/event-stream"
TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def echo_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Answers at no cost, since most requests allow up to 128 answers of any length. It has no network."""
    running = start_echo_stack(tmp_path_factory.mktemp("echo"), MediaSettings(media_egress="off"))
    yield running
    assert running.stop() == 0


def cases() -> Iterator[tuple[str, str, GenerationMode]]:
    """Yields verbs and paths with the kinds of requests that they can get: any text may be part of a URL."""
    for path, verbs in DOCUMENT["paths"].items():
        for verb, operation in verbs.items():
            yield verb.upper(), path, ALLOWED
            kinds = {each["schema"].get("type") for each in operation.get("parameters", ()) if each["in"] == "query"}
            if "requestBody" in operation or kinds - {"string"}:
                yield verb.upper(), path, FORBIDDEN


CASES = list(cases())
NUM_SHARES = sum(WEIGHTS.get(path, 1) for _, path, _ in CASES)


@functools.cache
def operations() -> Any:
    return schemathesis.openapi.from_dict(DOCUMENT)


@pytest.mark.parametrize(("verb", "path", "mode"), CASES)
def test_responses_match_the_openapi_document(echo_stack: Stack, verb: str, path: str, mode: GenerationMode) -> None:
    cases: Any = operations()[path][verb].as_strategy(generation_mode=mode)

    @settings(
        max_examples=max(1, round(NUM_EXAMPLES * WEIGHTS.get(path, 1) / NUM_SHARES)),
        derandomize=NUM_EXAMPLES <= 200,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(cases, st.booleans())
    def holds(case: Any, exists: bool) -> None:
        for name, folder in IDS.items():
            if exists and name in case.path_parameters:
                case.path_parameters[name] = create(echo_stack, folder)
        answer = case.call(base_url=echo_stack.url, timeout=TIMEOUT_SECONDS)
        is_stream = any(value.startswith(EVENTS) for value in answer.headers.get("content-type", []))
        case.validate_response(answer, checks=CHECKS if is_stream else [*CHECKS, response_schema_conformance])
        if is_stream:
            check_events(answer.content.decode(), path)

    holds()


def create(stack: Stack, path: str) -> str:
    """Returns the id of a new response, file or batch."""
    if path == "/v1/responses":
        return stack.post(path, {"input": "Hello"})["id"]
    is_batch = path == "/v1/batches"
    purpose = {"purpose": "batch" if is_batch else "user_data"}
    answer = requests.post(f"{stack.url}/v1/files", files={"file": b"Hello"}, data=purpose, timeout=60)
    if not is_batch:
        return answer.json()["id"]
    members = {"input_file_id": answer.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return stack.post(path, members)["id"]


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
