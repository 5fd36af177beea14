"""Three real servers behind the real gateway: conversations stay where their prefix is cached, others go by load."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.e2e.stack import children, free_ports
from tests.paths import ROOT
from tests.rehearsal.conversations import converse
from tests.rehearsal.mesh import Mesh, running_mesh
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("forks")

on_the_mesh = pytest.mark.asyncio(loop_scope="module")

NUM_CONVERSATIONS = 12
NUM_STREAMS = 4
QUICK = ("--kv-cache-bytes=64MiB", "--dtype=float32", "--drain-delay=0", f"--max-sequences={NUM_STREAMS}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[Mesh]:
    with TemporaryDirectory(prefix="glimpse-mesh-") as folder:
        async with running_mesh(Path(folder), *QUICK) as running:
            yield running


@on_the_mesh
async def test_conversations_stay_on_their_server(mesh: Mesh) -> None:
    """The quick form of `make rehearse`, one conversation at a time so that none is moved for its server's load.

    On a machine where a server did not answer its health check in seconds, conversations moved rightly: once more.
    """
    found = await converse(mesh, num_conversations=NUM_CONVERSATIONS, at_a_time=1)
    for _ in range(2):
        if found.num_disturbances:
            found = await converse(mesh, num_conversations=NUM_CONVERSATIONS, at_a_time=1)
    assert found.num_turns == 5 * NUM_CONVERSATIONS
    assert (found.num_failed, found.moved_before, found.moved_from_others, found.moved_at_return) == (0, 0, 0, 0), found
    # One ran there. Another may have been in the queue of a socket that listened while the process was taken down.
    assert found.num_interrupted <= 2
    assert found.moved_from_dead == found.returned == found.homes[found.killed] > 0
    assert found.cached_tokens == found.cached_tokens_alone > 0


@on_the_mesh
async def test_a_busy_server_gets_fewer_requests(mesh: Mesh) -> None:
    async with (
        grpc.aio.insecure_channel(mesh.replicas[0].target.grpc_target) as busy,
        aiohttp.ClientSession(mesh.gateway.target.url) as http,
    ):
        streams = [asyncio.create_task(_stream_on(busy)) for _ in range(NUM_STREAMS)]
        try:
            while not await _first_gets_fewer(mesh, http):
                pass
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


async def _stream_on(channel: grpc.aio.Channel) -> None:
    message = content_pb2.Message(role=content_pb2.ROLE_USER, content=[content_pb2.ContentPart(text="Go on.")])
    options = generation_pb2.GenerationOptions(min_tokens=4000, max_completion_tokens=4000)
    request = chat_pb2.CreateChatCompletionRequest(messages=[message], generation=options)
    while True:
        async for _ in chat_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(request):
            pass


async def _first_gets_fewer(mesh: Mesh, http: aiohttp.ClientSession) -> bool:
    """Sends requests that have no key, for as long as the gateway takes to weigh a report."""
    before = await mesh.num_requests_by_load()
    for _ in range(60):
        async with http.get("/v1/models") as answer:
            assert answer.status == 200
        await asyncio.sleep(0.02)
    busy, *others = (after - earlier for after, earlier in zip(await mesh.num_requests_by_load(), before, strict=True))
    return 4 * busy < min(others)


def test_mesh_serves_shows_its_load_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    http_port, port, metrics_port, redis_port = free_ports(4)
    command = [sys.executable, str(ROOT / "tools" / "mesh.py"), "--replicas=1"]
    command += [
        f"--http-port={http_port}",
        f"--port={port}",
        f"--metrics-port={metrics_port}",
        f"--redis-port={redis_port}",
    ]
    log_path = tmp_path / "mesh.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, "COLUMNS": "200"}
        )
    try:
        assert eventually(lambda: "Ctrl-C" in log_path.read_text()), log_path.read_text()
        body = {"prompt_cache_key": "me", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        request = urllib.request.Request(
            f"http://127.0.0.1:{http_port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"]
        row = re.compile(rf"127\.0\.0\.1:{port}\W+serving.*│\s+1\s+│\s+0\s+│")  # one by key, none by load
        assert eventually(lambda: row.search(log_path.read_text()) is not None), log_path.read_text()
    finally:
        started = children(process.pid, "")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=90) == 0
    assert len(started) >= 2
    assert not [pid for pid in started if Path(f"/proc/{pid}/stat").exists()]
