"""`glimpse batch`: each request has one result, whenever the command is stopped."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.interrupts import INTERRUPTED
from glimpse.server.batches.lines import methods
from glimpse.server.cli.batch.files import check_requests, open_results, read_requests
from glimpse.server.cli.batch.run_batch import run_batch
from glimpse.server.rpc.errors import DETAILS_HEADER, rich_status
from glimpse.server.rpc.failure import RpcFailure
from glimpse.usage import UsageError
from glimpse.v1 import model_pb2
from tests.e2e.stack import Served
from tests.fork_server import glimpse
from tests.paths import ROOT
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("forks")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PNG = base64.b64encode((ROOT / "examples/image.png").read_bytes()).decode()


def line(custom_id: str, body: Any, url: str = CHAT, **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body} | more) + "\n"


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0} | more


def command(requests: Path, results: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "glimpse", "batch", str(requests), str(results), *flags]


def run(requests: Path, results: Path, *flags: str) -> tuple[int, str]:
    """Exit status and standard error."""
    done = glimpse("batch", str(requests), str(results), *flags)
    return done.returncode, done.stderr


def read(results: Path) -> Mapping[str, Any]:
    """The responses by name, of which there is one for each."""
    found = [json.loads(each) for each in results.read_text().splitlines()]
    assert Counter(each["custom_id"] for each in found).most_common(1)[0][1] == 1
    assert all(each["error"] is None and each["id"].startswith("batch_req_") for each in found)
    return {each["custom_id"]: each["response"] for each in found}


def test_answers_every_kind_of_request_with_its_own_document(tmp_path: Path) -> None:
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    requests.write_text(
        line("text", asked("Hi"))
        + "\n"
        + line("image", asked("Hi", messages=[{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]))
        + line("completion", {"prompt": "Hi", "max_tokens": 3}, COMPLETIONS)
        + line("embedding", {"input": "Hi"}, "/v1/embeddings")
        + line("message", asked("Hi"), "/v1/messages")
        + line("invalid", asked("Hi", temperature="hot"))
        + line("unknown", asked("Hi", model="another"))
    )
    status, output = run(requests, results)
    assert status == 0, output
    responses = read(results)
    assert {name: each["status_code"] for name, each in responses.items()} == {
        "text": 200,
        "image": 200,
        "completion": 200,
        "embedding": 200,
        "message": 200,
        "invalid": 400,
        "unknown": 404,
    }
    assert responses["text"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert responses["image"]["body"]["usage"]["prompt_tokens"] > 40
    assert responses["completion"]["body"]["object"] == "text_completion"
    assert len(responses["embedding"]["body"]["data"]) == 1
    assert responses["message"]["body"]["type"] == "message"
    assert responses["invalid"]["body"]["error"]["param"] == "temperature"
    assert responses["text"]["request_id"] in responses["text"]["body"]["id"]
    before = results.read_text()
    status, output = run(requests, results)  # loads no model
    assert (status, results.read_text()) == (0, before)
    assert "7 results" in output


def test_asks_a_server_that_runs(tmp_path: Path, shared_server: Served) -> None:
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    target = f"--target={shared_server.target}"
    requests.write_text(line("text", asked("Hi")) + line("invalid", asked("Hi", temperature="hot")))
    for _ in range(2):
        status, output = run(requests, results, target)
        assert status == 0, output
        assert {name: each["status_code"] for name, each in read(results).items()} == {"text": 200, "invalid": 400}
    status, output = run(requests, tmp_path / "other.jsonl", "a/model", target)
    assert (status, "'--target': expected neither a model nor flags" in output) == (2, True), output
    status, output = run(requests, tmp_path / "other.jsonl", "--target=127.0.0.1:1")
    assert (status, "Is the server running?" in output) == (1, True), output


def test_a_request_that_needs_too_much_memory_is_not_asked_for_ever(tmp_path: Path) -> None:
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text(line("large", asked("Hi")))
    attempts = 0

    def answer(_: Any, context: grpc.ServicerContext) -> Iterator[HttpBody]:
        nonlocal attempts
        attempts += 1
        failure = RpcFailure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, message="No room.", reason="out_of_memory")
        context.set_trailing_metadata(((DETAILS_HEADER, rich_status(failure).SerializeToString()),))
        context.abort(failure.code, failure.message)
        yield HttpBody()

    server = grpc.server(ThreadPoolExecutor(2))
    facade = grpc.stream_stream_rpc_method_handler(answer, HttpBody.FromString, HttpBody.SerializeToString)
    listing = grpc.unary_unary_rpc_method_handler(lambda *_: model_pb2.ListModelsResponse().SerializeToString())
    handlers = {
        "glimpse.openai.v1.OpenAIService": {"CreateChatCompletion": facade},
        "glimpse.v1.ModelService": {"ListModels": listing},
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(*each) for each in handlers.items()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        status, output = run(requests, results, f"--target=127.0.0.1:{port}")
    finally:
        server.stop(None)
    assert (status, attempts) == (0, 3), output
    assert read(results)["large"]["status_code"] == 429


@pytest.mark.parametrize(
    ("how", "own_server"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGKILL, True)]
)
def test_goes_on_where_it_was_stopped(
    tmp_path: Path, shared_server: Served, how: signal.Signals, own_server: bool
) -> None:
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    names = [f"r{index}" for index in range(24)]
    requests.write_text("".join(line(name, asked(f"Say {name}", max_tokens=48, ignore_eos=True)) for name in names))
    target = f"--target={shared_server.target}"
    flags = ["--at-once=2"] if own_server else ["--at-once=2", target]
    process = subprocess.Popen(
        command(requests, results, *flags), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert eventually(lambda: results.exists() and results.read_text().count("\n") >= 3)
    if how is signal.SIGKILL:
        os.killpg(process.pid, how)  # the server too
    else:
        process.send_signal(how)
    _, output = process.communicate(timeout=60)
    if how is not signal.SIGKILL:
        assert process.returncode == 130
        assert "the same command goes on" in output
    stopped = results.read_text()
    assert 3 <= stopped.count("\n") < len(names)
    results.write_text(stopped + '{"id":"batch_req_1","custom_id":"r23","resp')  # as a crash may leave it
    status, output = run(requests, results, target)
    assert status == 0, output
    assert results.read_text().startswith(stopped)
    responses = read(results)
    assert set(responses) == set(names)
    assert {each["status_code"] for each in responses.values()} == {200}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stops_where_an_exception_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    async def swallow(*_: Any) -> None:
        with suppress(BaseException):  # as gRPC's compiled code does
            signal.raise_signal(how)
        await asyncio.sleep(20)

    module = "glimpse.server.cli.batch.run_batch"
    monkeypatch.setattr(f"{module}.served_models", lambda _: [])
    monkeypatch.setattr(f"{module}._Asker.result", swallow)
    requests = tmp_path / "in.jsonl"
    requests.write_text(line("text", asked("Hi")))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            run_batch(requests, tmp_path / "out.jsonl", None, (), target="127.0.0.1:1", at_once=1)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert ended.value.code == INTERRUPTED


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected a request in each line, got none"),
        (line("a", {}) + "{", "line 2: expected a request of a batch"),
        (line("a", {}) + line("b", {}) + line("a", {}), "line 3: expected a custom_id of its own, got 'a' again"),
        (line("", {}), "line 1: 'custom_id': expected a request of a batch"),
        (
            line("a", {}, "/v1/files"),
            "line 1: 'url': expected the path of a POST request of this batch, got '/v1/files'",
        ),
        (line("a", {}, "/v1/models"), "line 1: 'url'"),
        (line("a", {}, method="GET"), "line 1: 'method': expected 'POST', got 'GET'"),
        (line("a", {"stream": True}), "line 1: 'body.stream': expected false"),
        (line("a", []), "line 1: expected a request of a batch"),
        ('{"custom_id": "a", "url": "/v1/completions"}', "line 1: 'body': expected a request of a batch"),
    ],
)
def test_refuses_a_file_before_anything_is_answered(tmp_path: Path, text: str, told: str) -> None:
    requests = tmp_path / "in.jsonl"
    requests.write_text(text)
    with pytest.raises(UsageError) as caught:
        check_requests(requests, methods())
    assert told in str(caught.value)


def test_reads_only_what_has_no_result(tmp_path: Path) -> None:
    requests = tmp_path / "in.jsonl"
    requests.write_text(line("a", {"n": 1}) + line("b", {"n": 2}), encoding="utf-8-sig")
    assert check_requests(requests, methods()) == {"a", "b"}
    (left,) = read_requests(requests, methods(), without={"a"})
    assert (left.custom_id, bytes(left.body)) == ("b", b'{"n": 2}')


def test_results_are_one_run_s_at_a_time(tmp_path: Path) -> None:
    results = tmp_path / "out.jsonl"
    with open_results(results), pytest.raises(UsageError, match="another one writes it"), open_results(results):
        pass
    results.write_text("a line of another file\n")
    with pytest.raises(UsageError, match="line 1: expected a result of a batch"), open_results(results):
        pass
    with pytest.raises(UsageError, match="No such file"), open_results(tmp_path / "no folder" / "out.jsonl"):
        pass


@pytest.mark.parametrize("content", [line("a", {}), line("a", {}).strip(), "a note"])
def test_a_file_that_has_no_results_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """Such as that of the requests, whose last line may lack its end."""
    (file := tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(UsageError, match="line 1: expected a result of a batch"), open_results(file):
        pass
    assert file.read_text() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this file, which never ends")
def test_results_are_not_written_to_a_device() -> None:
    with pytest.raises(UsageError, match="expected a file for results"), open_results(Path("/dev/full")):
        pass
