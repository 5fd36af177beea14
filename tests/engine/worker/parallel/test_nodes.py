"""Tensor parallelism over several nodes: one answer, nodes that leave and return, and nodes that do not fit."""

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineState
from glimpse.engine.errors import CheckpointError, EngineErrorCode
from glimpse.engine.protocol.config import DEFAULT_MASTER_PORT, EngineConfig, EngineOptions
from glimpse.engine.protocol.messages import FinishReason
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.loading.weight_files import SINGLE_NAME, checkpoint_digest
from glimpse.engine.worker.parallel import handshake
from glimpse.engine.worker.parallel.group import interface_of, join_group
from glimpse.engine.worker.parallel.handshake import (
    HANDSHAKE_SECONDS,
    REPLIES,
    Accepted,
    Denied,
    Hello,
    make_hello,
)
from glimpse.engine.worker.parallel.messages import (
    Load,
    Loaded,
    LoadFailed,
    Refused,
    RendezvousAddress,
    channel_to_rank_zero,
)
from glimpse.engine.worker.parallel.node import serve_node
from glimpse.engine.worker.parallel.node_listener import MAX_GREETED, NodeListener
from glimpse.engine.worker.parallel.ranks import Ranks
from glimpse.frames import framed
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.e2e.stack import free_ports
from tests.engine.checking_runner import events_of, tokens_of
from tests.engine.harness import make_prompt, request_of
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forks")

DEADLINE_SECONDS = 200.0
PROMPT = make_prompt(2, 5, (112, 84), 9)
HOST, STRANGER = "127.0.0.1", "127.0.0.2"
FAKE_RANK = ("sh", "-c", "exit 0")


def node_config(path: Path | str, *, node_rank: int = 0, address: str = HOST, port: int = 0) -> EngineConfig:
    return EngineConfig(
        model_path=str(path),
        device="cpu",
        dtype="float32",
        backend="torch",
        num_threads=1,
        kv_cache_bytes=4 << 20,
        max_batch_tokens=40,
        tensor_parallel_size=2,
        nnodes=2,
        node_rank=node_rank,
        master_addr=address,
        master_port=port or free_ports(1)[0],
    )


def flags(config: EngineConfig) -> list[str]:
    """Returns the flags of `glimpse serve` for a configuration."""
    names = ("device", "dtype", "backend", "num_threads", "kv_cache_bytes", "max_batch_tokens", "tensor_parallel_size")
    names = (*names, "nnodes", "node_rank", "master_addr", "master_port")
    return [f"--model={config.model_path}", *(f"--{name.replace('_', '-')}={getattr(config, name)}" for name in names)]


@contextmanager
def running_node(config: EngineConfig, prefix: Sequence[str] = ()) -> Generator[subprocess.Popen[bytes]]:
    """Runs `glimpse serve` of a node other than 0."""
    node = subprocess.Popen([*prefix, sys.executable, "-m", "glimpse", "serve", *flags(config)])
    try:
        yield node
    finally:
        if node.poll() is None:
            node.terminate()
        node.wait(DEADLINE_SECONDS)


def sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


async def answer(client: EngineClient, request_id: str) -> list[int]:
    events = [event async for event in client.generate(request_of(request_id, PROMPT, sampling(10)))]
    assert events[-1].finish is FinishReason.LENGTH, events[-1].message
    return tokens_of(events)


@pytest.fixture(scope="module")
def expected(tiny_checkpoint: Path) -> list[int]:
    """The tokens of one rank."""
    alone = replace(
        node_config(tiny_checkpoint),
        tensor_parallel_size=1,
        nnodes=1,
        master_addr=None,
        master_port=DEFAULT_MASTER_PORT,
    )
    core = load_core(alone, on_progress=lambda _stage, _fraction: None).core
    core.submit(request_of("alone", PROMPT, sampling(10)))
    return tokens_of(events_of(core))


async def test_two_nodes_answer_as_one_and_a_lost_node_can_be_replaced(
    tiny_checkpoint: Path, tmp_path: Path, expected: list[int]
):
    copy = make_checkpoint(tmp_path / "copy")  # each node reads its own files
    config = node_config(tiny_checkpoint)
    other = node_config(copy, node_rank=1, port=config.master_port)
    client = EngineClient(config)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            with running_node(other) as node:
                ready = await client.start()
                assert ready.tensor_parallel_size == 2
                assert await answer(client, "first") == expected
                async with aclosing(client.generate(request_of("lost", PROMPT, sampling(3000)))) as events:
                    await anext(events)
                    os.kill(node.pid, signal.SIGKILL)  # its rank ends with it
                    last = [event async for event in events][-1]
                assert (last.finish, last.error) == (FinishReason.ERROR, EngineErrorCode.DIED)
            with running_node(other) as node:
                await until(lambda: client.state is EngineState.READY)
                assert await answer(client, "again") == expected
                node.terminate()
                assert await asyncio.to_thread(node.wait) == 0
    finally:
        await client.stop()


@contextmanager
def two_namespaces() -> Generator[tuple[list[str], list[str]]]:
    """Yields commands that run a program on hosts 10.213.7.1 and 10.213.7.2, with a cable between them."""
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("needs network namespaces: root, and `ip` (apt-get install iproute2)")
    names = [f"glimpse-{os.getpid()}-{number}" for number in (1, 2)]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "veth1", "netns", names[0], "type", "veth", "peer", "name", "veth2", "netns", names[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"needs network namespaces, which this machine refuses: {error.stderr}")
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.213.7.{number}/24", "dev", f"veth{number}")
            ip("-n", name, "link", "set", f"veth{number}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield (["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]])
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)


async def test_two_nodes_meet_over_a_network(tiny_checkpoint: Path, expected: list[int]):
    config = node_config(tiny_checkpoint, address="10.213.7.1", port=DEFAULT_MASTER_PORT)
    with two_namespaces() as (first, second):
        client = EngineClient(config, command=(*first, *ENGINE_COMMAND))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                with running_node(replace(config, node_rank=1), second):
                    await client.start()
                    assert await answer(client, "first") == expected
        finally:
            await client.stop()


@contextmanager
def listening(config: EngineConfig, digest: str = "weights") -> Generator[list[Hello]]:
    """Lets ranks join node 0, and yields those that have. Their connections are closed at once."""
    listener = NodeListener(config, digest)
    joined: list[Hello] = []

    def on_rank(hello: Hello, _config: EngineConfig, connection: socket.socket) -> None:
        joined.append(hello)
        connection.close()

    thread = threading.Thread(target=listener.accept_all, args=(on_rank,))
    thread.start()
    try:
        yield joined
    finally:
        listener.close()
        thread.join()


async def serve_until(config: EngineConfig, digest: str, is_done: Any) -> None:
    """Runs a node whose ranks end at once, until something is the case."""
    node = asyncio.create_task(serve_node(config, digest, command=FAKE_RANK))
    await until(lambda: is_done() or node.done())
    node.cancel()
    with suppress(asyncio.CancelledError):
        await node


@pytest.mark.parametrize(
    ("changed", "digest", "reason"),
    [
        ({"dtype": "bfloat16"}, "weights", "'--dtype': expected float32, which node 0 has, got bfloat16"),
        ({"tensor_parallel_size": 4}, "weights", "'--tensor-parallel-size': expected 2, which node 0 has, got 4"),
        ({"nnodes": 1}, "weights", "'--nnodes': expected 2, which node 0 has, got 1"),
        ({"node_rank": 0}, "weights", "'--node-rank': expected that of another node than 0, got 0 with rank 0"),
        ({}, "others", "'--model': expected the checkpoint that node 0 has"),
    ],
)
async def test_refuses_a_node_that_does_not_fit_on_both_sides_and_waits_for_one_that_does(
    changed: dict[str, Any], digest: str, reason: str, caplog: pytest.LogCaptureFixture
):
    config = node_config("here")
    other = replace(config, node_rank=1, model_path="there", num_threads=7, kv_cache_bytes=None)
    with listening(config) as joined, caplog.at_level(logging.ERROR):
        with pytest.raises(CheckpointError, match="node 0 refuses this node: ") as caught:
            await serve_until(replace(other, **changed), digest, lambda: joined)
        assert reason in str(caught.value)
        assert f"{other.master_addr} is refused: {reason}" in caplog.text
        assert not joined
        await serve_until(other, "weights", lambda: joined)
    assert (joined[0].rank, joined[0].address, joined[0].config["model_path"]) == (1, HOST, "there")


@pytest.mark.parametrize("name", ["glimpse", "torch"])
async def test_refuses_another_version_by_name(name: str, monkeypatch: pytest.MonkeyPatch):
    config = node_config("here")
    hello = make_hello(config, "weights", rank=1, address=HOST)
    with listening(config) as joined:
        older = msgspec.structs.replace(hello, **{name: "0.0.1"})
        monkeypatch.setattr("glimpse.engine.worker.parallel.node.make_hello", lambda *_args, **_options: older)
        with pytest.raises(CheckpointError, match=rf"{name}: expected version .*, which node 0 has, got 0\.0\.1"):
            await serve_until(replace(config, node_rank=1), "weights", lambda: joined)


async def test_node_joins_again_when_node_0_is_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("glimpse.engine.worker.parallel.node.RETRY_SECONDS", 0.01)
    config = node_config("here")
    other = replace(config, node_rank=1)
    rounds: list[list[Hello]] = []

    def serve_twice() -> None:
        for _ in range(2):
            with listening(config) as joined:
                rounds.append(joined)
                while not joined:
                    pass_time.wait(0.01)

    pass_time = threading.Event()
    node_0 = threading.Thread(target=serve_twice)
    node_0.start()
    await serve_until(other, "weights", lambda: not node_0.is_alive())
    node_0.join()
    assert [len(joined) for joined in rounds] == [1, 1]


async def test_node_that_is_stopped_while_node_0_answers_ends(monkeypatch: pytest.MonkeyPatch):
    async def accept(*_arguments: object) -> Accepted:
        node.cancel()
        return Accepted()

    monkeypatch.setattr("glimpse.engine.worker.parallel.node._greet", accept)
    config = node_config("here")
    with listening(config):
        node = asyncio.create_task(serve_node(replace(config, node_rank=1), "weights", command=FAKE_RANK))
        await asyncio.wait([node], timeout=20)
    assert node.cancelled()


async def test_node_whose_rank_cannot_compute_with_the_others_ends():
    config = node_config("here")
    command = ("sh", "-c", f"exit {handshake.CANNOT_SERVE}")
    with listening(config), pytest.raises(CheckpointError, match="a rank of node 1 cannot compute with node 0"):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await serve_node(replace(config, node_rank=1), "weights", command=command)


def connect(config: EngineConfig) -> socket.socket:
    return socket.create_connection((config.master_addr or "", config.master_port), timeout=DEADLINE_SECONDS)


def greet(connection: socket.socket, hello: Hello) -> Accepted | Denied:
    connection.sendall(framed(hello))
    reply = REPLIES.read(connection)
    assert reply is not None
    return reply


def test_strangers_are_closed_and_a_rank_joins_once():
    config = replace(node_config("here"), tensor_parallel_size=4)
    hello = make_hello(replace(config, node_rank=1), "weights", rank=2, address=HOST)
    with listening(config) as joined:
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", framed(Accepted()), b"\x03\0\0\0abc", framed(hello)[:40]):
            with connect(config) as connection:
                connection.sendall(nonsense)
                with suppress(OSError):  # it may be closed already
                    connection.shutdown(socket.SHUT_WR)
                    assert connection.recv(1) == b""
        with connect(config) as connection:
            assert greet(connection, hello) == Accepted()
        with connect(config) as connection:
            assert greet(connection, hello) == Denied(message="rank 2 has joined already", is_final=False)
        assert [each.rank for each in joined] == [2]


def test_silent_connections_delay_no_node():
    config = node_config("here")
    hello = make_hello(replace(config, node_rank=1), "weights", rank=1, address=HOST)
    with listening(config) as joined, ExitStack() as silent:
        for _ in range(MAX_GREETED - 1):
            silent.enter_context(connect(config))
        with connect(config) as connection:
            connection.settimeout(HANDSHAKE_SECONDS / 2)  # each of the others may take all of it
            assert greet(connection, hello) == Accepted()
    assert [each.rank for each in joined] == [1]


def test_connections_between_nodes_end_when_a_host_vanishes():
    with socket.create_server((HOST, 0)) as server:
        store = RendezvousAddress(host=HOST, port=server.getsockname()[1])
        join = partial(join_group, store, num_ranks=2, device=torch.device("cpu"), address=HOST)
        with ThreadPoolExecutor(2) as threads:
            other = threads.submit(join, rank=1)
            groups = join(rank=0, store_socket=server), other.result()
    time_limits: list[int] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            connection = socket.socket(fileno=int(entry.name))
            if connection.getsockname()[:1] == (HOST,):
                time_limits.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            connection.detach()
    assert time_limits
    assert set(time_limits) == {25_000}
    del groups


def test_node_0_listens_on_its_address_alone():
    config = node_config("here")
    with listening(config):
        connect(config).close()
        with pytest.raises(ConnectionRefusedError):
            connect(replace(config, master_addr=STRANGER))


@pytest.mark.parametrize(
    ("address", "reason"),
    [("192.0.2.1", "expected an address of this machine, which is node 0"), ("0.0.0.0", "that other nodes can reach")],
)
def test_refuses_an_address_that_is_not_node_0_s(address: str, reason: str):
    with pytest.raises(CheckpointError, match=rf"'--master-addr': .*{reason}.*, got {address}"):
        NodeListener(node_config("here", address=address), "weights")


def test_refuses_a_rank_that_has_loaded_another_dtype(tmp_path: Path):
    config = node_config(tmp_path)
    failures: list[str] = []
    ranks = Ranks(config, digest="weights", on_rank_failure=lambda: failures.append("failed"))
    hello = make_hello(replace(config, node_rank=1), "weights", rank=1, address=HOST)
    connection = connect(config)
    assert greet(connection, hello) == Accepted()
    pipe = channel_to_rank_zero(connection)
    load = pipe.receive()
    assert isinstance(load, Load)
    assert (load.rank, load.config) == (1, replace(config, node_rank=1))
    pipe.send(Loaded(device="cpu", dtype="bfloat16", quantization="none"))

    def leave() -> None:
        refused = pipe.receive()
        assert isinstance(refused, Refused)
        pipe.send(LoadFailed(message=refused.message))
        pipe.close()

    thread = threading.Thread(target=leave)
    thread.start()
    message = rf"rank 1 on node 1 at {HOST}: '--dtype': expected float32, which rank 0 computes with, got bfloat16"
    with pytest.raises(CheckpointError, match=message):
        ranks.join(torch.device("cpu"), Loaded(device="cpu", dtype="float32", quantization="none"))
    thread.join()
    ranks.end()
    assert not failures


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"node_rank": 1}, "'--node-rank': expected less than --nnodes 1, got 1"),
        ({"nnodes": 2}, "'--master-addr': expected the address of node 0 with --nnodes 2, got none"),
        ({"nnodes": 2, "master_addr": HOST}, "'--tensor-parallel-size': expected a multiple of --nnodes 2, got 1"),
        ({"master_addr": HOST}, "'--master-addr' and '--master-port': expected with '--nnodes' of 2 or more"),
        ({"master_port": 1}, "'--master-addr' and '--master-port': expected with '--nnodes' of 2 or more"),
        (
            {"speculative": "off", "num_speculative_tokens": 5},
            "'--num-speculative-tokens': expected with '--speculative' auto, ngram or mtp, got --speculative off",
        ),
    ],
)
def test_refuses_options_that_do_not_go_together(options: dict[str, Any], reason: str, tmp_path: Path):
    assert reason in (EngineOptions(**options).why_not_together or "")
    with pytest.raises(CheckpointError, match=reason):
        load_core(EngineConfig(model_path=str(tmp_path), **options), on_progress=lambda _stage, _fraction: None)


def test_all_options_are_either_a_node_s_own_or_compared():
    known = set(make_hello(node_config("here"), "", rank=0, address=HOST).config)
    assert known > handshake.LOCAL_OPTIONS


def test_digest_tells_checkpoints_with_other_weights_apart(tiny_checkpoint: Path, tmp_path: Path):
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    digest = checkpoint_digest([str(tiny_checkpoint)])
    assert checkpoint_digest([str(copy)]) == digest
    weights = copy / SINGLE_NAME
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert checkpoint_digest([str(copy)]) != digest
    weights.unlink()
    assert checkpoint_digest([str(copy)]) != digest


def test_finds_the_interface_of_an_address():
    assert (interface_of(HOST), interface_of("::1"), interface_of("192.0.2.1")) == ("lo", "lo", None)
