"""The typed methods as JSON, on the paths of `google.api.http`: what they answer, and how they refuse and fail."""

import base64
import hashlib
import http.client
import json
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from glimpse.client import Client, Image
from glimpse.server.telemetry.ignored_fields import IGNORED_FIELDS_HEADER
from tests.e2e.stack import ROOT, Stack

PATH = "/glimpse/v1/"
CHAT = f"{PATH}chatCompletions"
IMAGE = (ROOT / "examples" / "image.png").read_bytes()
MESSAGES = [
    {
        "role": "ROLE_USER",
        "content": [
            {"image": {"source": {"data": base64.b64encode(IMAGE).decode()}}},
            {"text": "What is in this image?"},
        ],
    }
]
DOCUMENT = json.loads((ROOT / "gateway" / "openapi_typed.json").read_text())


def ask(stack: Stack, verb: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Any:
    """Returns the status, the content type and the body."""
    status, answered, document = respond(stack, verb, path, body, **headers)
    return status, answered["content-type"], document


def respond(stack: Stack, verb: str, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Any:
    """Returns the status, the headers and the body."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    with closing(http.client.HTTPConnection("127.0.0.1", stack.http_port, timeout=60)) as connection:
        connection.request(verb, path, data, {"content-type": "application/json"} | headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def matches(name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


def refusal(answer: tuple[int, str, bytes]) -> tuple[int, int, str, str]:
    """The HTTP status, gRPC's, the reason and the message of an error."""
    status, kind, body = answer
    error = json.loads(body)
    assert kind == "application/json"
    matches("google.rpc.Status", error)
    return status, error["code"], error["details"][0]["reason"], error["message"]


def test_answers_about_an_image_as_over_grpc(echo_stack: Stack) -> None:
    status, kind, body = ask(echo_stack, "POST", CHAT, {"messages": MESSAGES, "user": None})
    assert (status, kind) == (200, "application/json")
    matches("CreateChatCompletionResponse", json.loads(body))
    with Client(echo_stack.target) as client:
        expected = client.chat([Image(IMAGE), "What is in this image?"])
    assert json.loads(body)["choices"][0]["message"]["content"] == expected.text
    assert json.loads(body)["usage"]["promptTokensDetails"]["imageTokens"] > 0


def test_streams_a_line_for_each_message(echo_stack: Stack) -> None:
    request = {"messages": MESSAGES, "streamOptions": {"includeUsage": True}}
    whole = json.loads(ask(echo_stack, "POST", CHAT, {"messages": MESSAGES})[2])
    status, kind, body = ask(echo_stack, "POST", f"{CHAT}:stream", request)
    assert (status, kind) == (200, "application/x-ndjson")
    chunks = [json.loads(line)["result"] for line in body.splitlines()]
    for chunk in chunks:
        matches("StreamChatCompletionResponse", chunk)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"]["totalTokens"] == whole["usage"]["totalTokens"]


@pytest.mark.parametrize(
    ("verb", "path", "body", "name"),
    [
        ("GET", "models", None, "ListModelsResponse"),
        ("GET", "models/nano", None, "GetModelResponse"),
        ("POST", "chatCompletions:countTokens", {"messages": MESSAGES}, "CountTokensResponse"),
        ("POST", "completions", {"prompts": [{"text": "Once"}]}, "CreateCompletionResponse"),
        ("POST", "prompts:tokenize", {"prompt": "Once"}, "TokenizeResponse"),
        ("POST", "tokens:detokenize", {"tokens": [65, 66]}, "DetokenizeResponse"),
    ],
)
def test_every_answer_matches_the_openapi_document(
    echo_stack: Stack, verb: str, path: str, body: dict[str, Any] | None, name: str
) -> None:
    status, _, answer = ask(echo_stack, verb, PATH + path, body)
    assert status == 200, answer
    matches(name, json.loads(answer))


def test_a_stream_that_fails_says_so_in_its_last_line(echo_stack: Stack) -> None:
    path = f"{PATH}loadReports:stream?reportInterval.seconds=60"
    status, _, body = ask(echo_stack, "GET", path, None, **{"grpc-timeout": "1S"})
    report, error = map(json.loads, body.splitlines())
    matches("StreamLoadReportsResponse", report["result"])
    assert (status, error["error"]["code"], error["error"]["details"][0]["reason"]) == (200, 4, "DEADLINE_EXCEEDED")


@pytest.mark.parametrize(
    ("verb", "path", "body", "headers", "expected", "named"),
    [
        ("POST", CHAT, {"messages": MESSAGES, "temperatur": 1}, {}, (400, 3, "INVALID_VALUE"), '"temperatur"'),
        (
            "GET",
            f"{PATH}media?limt=1",
            None,
            {},
            (400, 3, "UNSUPPORTED"),
            "'limt': unknown parameter; did you mean 'limit'",
        ),
        ("GET", f"{PATH}loadReports:stream?reportInterval.second=1", None, {}, (400, 3, "UNSUPPORTED"), "'seconds'"),
        ("POST", f"{CHAT}:stream", {"messages": []}, {}, (400, 3, "MISSING_VALUE"), "'messages'"),
        ("POST", CHAT, {"messages": MESSAGES, "model": "x"}, {}, (404, 5, "MODEL_NOT_FOUND"), "'nano'"),
        ("POST", CHAT, b"x" * ((8 << 20) + 1), {}, (413, 3, "REQUEST_TOO_LARGE"), "8388608"),
        ("POST", CHAT, {}, {"content-type": "text/plain"}, (400, 3, "UNSUPPORTED_MEDIA_TYPE"), "text/plain"),
        # The gateway's own.
        ("POST", CHAT, {}, {"origin": "https://evil.example"}, (403, 7, "PERMISSION_DENIED"), "--allow-origin"),
        ("POST", CHAT, {}, {"content-encoding": "gzip"}, (415, 3, "UNSUPPORTED_MEDIA_TYPE"), "gzip"),
        ("GET", CHAT, None, {}, (405, 12, "METHOD_NOT_ALLOWED"), CHAT),
        ("POST", f"{PATH}chat", {}, {}, (404, 5, "UNKNOWN_URL"), f"{PATH}openapi.json"),
    ],
)
def test_refusals_are_a_status(
    echo_stack: Stack,
    verb: str,
    path: str,
    body: bytes | dict[str, Any] | None,
    headers: dict[str, str],
    expected: tuple[int, int, str],
    named: str,
) -> None:
    *found, message = refusal(ask(echo_stack, verb, path, body, **headers))
    assert tuple(found) == expected
    assert named in message


@pytest.mark.parametrize(
    ("verb", "path", "body", "ignored"),
    [
        ("GET", "media?limit=1&foo=1&cache_salt=a", None, "?foo"),
        ("GET", "models?reportInterval.seconds=1", None, '?["reportInterval.seconds"]'),
        ("POST", "chatCompletions?limit=1", {"messages": MESSAGES}, "?limit"),
        ("POST", "chatCompletions:stream?foo", {"messages": MESSAGES}, "?foo"),
        ("GET", "media?limit=1&cacheSalt=a", None, None),
    ],
)
def test_parameters_of_the_url_that_are_no_fields_are_told(
    echo_stack: Stack, verb: str, path: str, body: dict[str, Any] | None, ignored: str | None
) -> None:
    status, headers, _ = respond(echo_stack, verb, PATH + path, body)
    assert (status, headers[IGNORED_FIELDS_HEADER]) == (200, ignored)


def test_an_upload_is_sent_in_lines_and_used_by_its_id(echo_stack: Stack) -> None:
    digest = base64.b64encode(hashlib.sha256(IMAGE).digest()).decode()
    chunks = [base64.b64encode(IMAGE[at : at + 1000]).decode() for at in range(0, len(IMAGE), 1000)]
    lines = [{"header": {"sha256": digest}}, *({"chunk": chunk} for chunk in chunks)]
    body = "\n\n".join(map(json.dumps, lines)).encode()
    status, _, answer = ask(echo_stack, "POST", f"{PATH}media", body, **{"content-type": "application/x-ndjson"})
    assert status == 200, answer
    media = json.loads(answer)["media"]
    assert (media["sizeBytes"], media["sha256"]) == (str(len(IMAGE)), digest)
    source = {"uploadId": media["uploadId"]}
    message = {"role": "ROLE_USER", "content": [{"image": {"source": source}}]}
    assert ask(echo_stack, "POST", f"{CHAT}:countTokens", {"messages": [message]})[0] == 200
    path = f"{PATH}media/{media['uploadId']}"
    assert json.loads(ask(echo_stack, "GET", path)[2])["media"] == media
    assert ask(echo_stack, "GET", f"{path}?cacheSalt=another")[0] == 404
    assert ask(echo_stack, "DELETE", path)[0] == 200
    assert refusal(ask(echo_stack, "GET", path))[:3] == (404, 5, "UPLOAD_NOT_FOUND")
