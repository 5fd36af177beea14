"""Batches over REST, through Envoy: OpenAI's client begins them, watches them, and reads the answers."""

import base64
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from openai import APIStatusError, OpenAI
from openai.types import Batch
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.e2e.images import encoded, tiles

PNG = encoded(tiles(seed=5))
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
ENDED = ("completed", "failed", "expired", "cancelled")


def begin(client: OpenAI, endpoint: str, bodies: Sequence[Any], **options: Any) -> Batch:
    lines = [
        json.dumps({"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": body})
        for number, body in enumerate(bodies)
    ]
    file = client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
    where: Any = endpoint
    batch = client.batches.create(input_file_id=file.id, endpoint=where, completion_window="24h", **options)
    Batch.model_validate_json(batch.to_json(), strict=True)
    return batch


def end_of(client: OpenAI, batch: Batch) -> Batch:
    deadline = time.monotonic() + 100
    while (found := client.batches.retrieve(batch.id)).status not in ENDED:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    Batch.model_validate_json(found.to_json(), strict=True)
    return found


def read(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file of answers by their names, each of which has one."""
    assert file_id is not None
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def asked(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 8, "temperature": 0, **more}


TEXT = {"type": "text", "text": "What is in this image?"}


def test_conversations_have_the_answers_that_they_have_outside_of_a_batch(client: OpenAI) -> None:
    image = client.files.create(file=("image.png", PNG), purpose="vision").id
    bodies = [
        asked(TEXT),
        asked({"type": "image_url", "image_url": {"url": URL}}, TEXT),
        asked({"type": "file", "file": {"file_id": image}}, TEXT),
        asked(TEXT, model="another"),
        asked(TEXT, temperature="hot"),
    ]
    batch = begin(client, "/v1/chat/completions", bodies, metadata={"by": "a test"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"by": "a test"})
    ended = end_of(client, batch)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert ended.request_counts.model_dump() == {"total": 5, "completed": 3, "failed": 2}
    answers, errors = read(client, ended.output_file_id), read(client, ended.error_file_id)
    for number in range(3):
        same_request: Any = {"model": "nano", **bodies[number]}
        alone = client.chat.completions.create(**same_request)
        same = ChatCompletion.model_validate(answers[f"r{number}"]["response"]["body"], strict=True)
        assert same.choices == alone.choices
        assert same.usage is not None
        assert alone.usage is not None
        assert same.usage.prompt_tokens == alone.usage.prompt_tokens
    found = {
        name: (each["response"]["status_code"], each["response"]["body"]["error"]["param"])
        for name, each in errors.items()
    }
    assert found == {"r3": (404, "model"), "r4": (400, "temperature")}
    file = client.files.retrieve(str(ended.output_file_id))
    assert (file.purpose, file.bytes) == ("batch_output", len(client.files.content(file.id).content))
    assert file.id in [each.id for each in client.files.list()]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
        ("/v1/embeddings", {"input": ["Hi", "there"]}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 16, "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}),
    ],
)
def test_every_endpoint_has_batches(client: OpenAI, endpoint: str, body: Any) -> None:
    ended = end_of(client, begin(client, endpoint, [{"model": "nano", **body}, {"model": "nano", "temperature": []}]))
    assert ended.status == "completed"
    (answer,), (error,) = read(client, ended.output_file_id).values(), read(client, ended.error_file_id).values()
    document = answer["response"]["body"]
    assert document.get("object", document.get("type")) in ("text_completion", "list", "response", "message")
    if endpoint == "/v1/responses":
        Response.model_validate(document, strict=False)
    assert error["response"]["status_code"] == 400
    assert ("type" in error["response"]["body"]) is (endpoint == "/v1/messages")


def test_lines_that_are_no_requests_are_told(client: OpenAI) -> None:
    file = client.files.create(file=b'{"custom_id": "a"}\nnot JSON\n', purpose="batch")
    failed = end_of(
        client,
        client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"),
    )
    assert (failed.status, failed.output_file_id, failed.error_file_id) == ("failed", None, None)
    assert failed.errors is not None
    assert failed.errors.data is not None
    told = [(each.code, each.line, each.param) for each in failed.errors.data]
    assert told == [("missing_required_parameter", 1, "url"), ("invalid_json_line", 2, None)]


def test_batches_are_listed_and_cancelled(client: OpenAI) -> None:
    body = {"prompt": "Hi", "max_tokens": 200, "ignore_eos": True}
    begun = [begin(client, "/v1/completions", [body] * 40).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert [each.id for each in page.data] == begun[:0:-1]
    assert page.has_more
    assert [each.id for each in client.batches.list(limit=2)][:3] == begun[::-1]
    for batch_id in begun:
        assert client.batches.cancel(batch_id).status == "cancelling"
    for batch_id in begun:
        ended = end_of(client, client.batches.retrieve(batch_id))
        assert ended.status == "cancelled"
        assert ended.request_counts is not None
        names = [name for file in (ended.output_file_id, ended.error_file_id) if file for name in read(client, file)]
        assert len(names) == ended.request_counts.total


def test_what_is_no_batch_is_refused(client: OpenAI) -> None:
    image = client.files.create(file=("image.png", PNG), purpose="vision").id
    refusals: list[tuple[Any, int, str]] = [
        (lambda: client.batches.retrieve("batch_x"), 404, "batch_id"),
        (lambda: client.batches.cancel("batch_x"), 404, "batch_id"),
        (lambda: begin(client, "/v1/nothing", [{}]), 400, "endpoint"),
        (
            lambda: client.batches.create(input_file_id=image, endpoint="/v1/embeddings", completion_window="24h"),
            400,
            "input_file_id",
        ),
    ]
    for call, status, param in refusals:
        with pytest.raises(APIStatusError) as caught:
            call()
        assert (caught.value.status_code, caught.value.param) == (status, param), caught.value
