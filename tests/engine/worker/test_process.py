"""The engine process: its loop around the real core with a pausable runner, then the whole engine with torch."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process, create_subprocess_exec
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.client.child import EngineChild
from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineState
from glimpse.engine.errors import CheckpointError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import (
    Cancel,
    Failed,
    FinishReason,
    FromEngine,
    Generate,
    Loading,
    MediaInput,
    Prepare,
    Ready,
    Start,
    Step,
    StepStats,
    Stop,
    ToEngine,
    TokenEvent,
)
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.protocol.transport import FROM_ENGINE
from glimpse.frames import AsyncChannel
from glimpse.media.kind import MediaKind
from glimpse.native.process_table import resident_bytes, stat
from tests.waiting import until

PAUSABLE_ENGINE = Path(__file__).with_name("pausable_engine.py")


class PausableEngine:
    """A process with a pausable runner, and the test's ends of its socket and its gate."""

    def __init__(self, process: Process, gate: socket.socket, channel: AsyncChannel[FromEngine]) -> None:
        self.process = process
        self.gate = gate
        self.channel = channel
        self.noted: Counter[str] = Counter()
        self.num_posted = 0

    def post(self, message: ToEngine) -> None:
        self.channel.post(message)
        self.num_posted += 1

    async def arrival(self) -> None:
        """Waits until all posted messages are in the inbox."""
        while self.noted["m"] < self.num_posted:
            await self._read_note()

    async def step_begins(self) -> None:
        """Waits until a step pauses at the gate."""
        while not self.noted["s"]:
            await self._read_note()
        self.noted["s"] -= 1

    async def preparation_begins(self) -> None:
        """Waits until a preparation pauses at the gate."""
        while not self.noted["p"]:
            await self._read_note()
        self.noted["p"] -= 1

    async def _read_note(self) -> None:
        note = await asyncio.get_running_loop().sock_recv(self.gate, 1)
        self.noted[note.decode()] += 1

    def open_gate(self) -> None:
        """Lets the step at the gate continue."""
        self.gate.sendall(b".")

    async def receive(self) -> FromEngine | None:
        return await self.channel.receive()

    async def receive_events(self) -> list[TokenEvent]:
        """Returns the events of the next step."""
        message = await self.receive()
        assert isinstance(message, Step)
        return message.events

    async def step(self) -> list[TokenEvent]:
        """Waits until a step starts, lets it continue, and returns its events."""
        await self.step_begins()
        self.open_gate()
        return await self.receive_events()

    async def exit_status(self) -> int:
        return await self.process.wait()

    async def log(self) -> str:
        """Returns the process's output, once it has exited."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@asynccontextmanager
async def pausable(model_path: str | None = "model") -> AsyncGenerator[PausableEngine]:
    """Starts a process that loads `model_path`, unless that is None."""
    ours, theirs = socket.socketpair()
    gate, their_gate = socket.socketpair()
    gate.setblocking(False)
    with gate, theirs, their_gate:
        fds = [theirs.fileno(), their_gate.fileno()]
        command = [sys.executable, str(PAUSABLE_ENGINE), "--fd", str(fds[0]), "--gate", str(fds[1])]
        process = await create_subprocess_exec(*command, pass_fds=fds, stdin=DEVNULL, stderr=PIPE)
        theirs.close()
        channel = await AsyncChannel.connect(ours, FROM_ENGINE)
        engine = PausableEngine(process, gate, channel)
        if model_path is not None:
            engine.post(Start(config=EngineConfig(model_path=model_path)))
        try:
            yield engine
        finally:
            await channel.close()  # this ends the process
            await process.wait()


@asynccontextmanager
async def pausable_and_ready(model_path: str = "model") -> AsyncGenerator[PausableEngine]:
    async with pausable(model_path) as engine:
        assert isinstance(await engine.receive(), Loading)
        assert isinstance(await engine.receive(), Ready)
        yield engine


def request(request_id: str = "r", max_tokens: int = 9) -> Generate:
    return Generate(request_id=request_id, token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=max_tokens))


async def test_loading_is_reported_before_ready() -> None:
    async with pausable() as engine:
        assert await engine.receive() == Loading(stage="opening the gate", fraction=0.5)
        ready = await engine.receive()
        assert isinstance(ready, Ready)
        assert ready.max_model_len == 64


async def test_idle_time_is_used_for_preparation() -> None:
    async with pausable_and_ready("unprepared") as engine:
        await engine.preparation_begins()
        engine.post(request(max_tokens=1))
        await engine.arrival()
        engine.open_gate()
        await engine.step_begins()
        assert not engine.noted["p"]
        engine.open_gate()
        assert [event.finish for event in await engine.receive_events()] == [FinishReason.LENGTH]
        await engine.preparation_begins()
        engine.open_gate()
        engine.post(Stop())
        assert await engine.exit_status() == 0


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc keeps what is freed")
async def test_freed_memory_returns_to_the_system() -> None:
    async with pausable_and_ready("forgetful") as engine:
        await engine.preparation_begins()
        await until(lambda: resident_bytes(engine.process.pid) <= 150 << 20)
        engine.post(Stop())
        assert await engine.exit_status() == 0


async def test_each_step_sends_one_message() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request(max_tokens=3))
        steps = [await engine.step() for _ in range(3)]
    assert [[event.token_ids for event in events] for events in steps] == [[[3]], [[4]], [[5]]]
    assert [event.finish for events in steps for event in events] == [None, None, FinishReason.LENGTH]


async def test_request_that_arrives_during_a_step_joins_the_next() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request("first"))
        await engine.step_begins()
        engine.post(request("second"))
        await engine.arrival()
        engine.open_gate()
        assert [event.request_id for event in await engine.receive_events()] == ["first"]
        assert {event.request_id for event in await engine.step()} == {"first", "second"}


async def test_cancelled_request_is_gone_before_the_next_step() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request())
        await engine.step()
        await engine.step_begins()
        engine.post(Cancel(request_id="r"))
        await engine.arrival()
        engine.open_gate()
        [last_token] = await engine.receive_events()
        assert last_token.finish is None
        [event] = await engine.receive_events()  # without opening the gate
        assert (event.request_id, event.finish) == ("r", FinishReason.CANCELLED)


async def test_stop_cancels_requests_and_exits_cleanly() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request("a"))
        await engine.step_begins()
        engine.post(request("b"))
        engine.post(Stop())
        await engine.arrival()
        engine.open_gate()
        assert [event.finish for event in await engine.receive_events()] == [None]
        last = {event.request_id: event.finish for event in await engine.receive_events()}
        assert last == {"a": FinishReason.CANCELLED, "b": FinishReason.CANCELLED}
        assert await engine.receive() is None
        assert await engine.exit_status() == 0


async def test_refusal_is_sent_even_if_idle() -> None:
    async with pausable_and_ready() as engine:
        engine.post(Generate(request_id="long", token_ids=[1] * 64, sampling=SamplingParams()))
        [event] = await engine.receive_events()
        assert (event.request_id, event.error) == ("long", EngineErrorCode.PROMPT_TOO_LONG)


async def test_idle_engine_uses_no_cpu_time() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request(max_tokens=1))
        await engine.step()
        await until(lambda: _sleeps(engine.process.pid))  # until then Linux may not have counted what the step took
        before = _processor_ticks(engine.process.pid)
        await asyncio.sleep(0.2)
        assert _processor_ticks(engine.process.pid) - before <= 2


async def test_process_ends_with_an_idle_front_end() -> None:
    async with pausable(None) as engine:
        await engine.channel.close()
        assert await engine.exit_status() == 0


async def test_process_ends_with_its_front_end_during_a_step() -> None:
    async with pausable_and_ready() as engine:
        engine.post(request())
        await engine.step_begins()
        await engine.channel.close()
        assert await engine.exit_status() == 0


async def test_unusable_checkpoint_is_reported_without_traceback() -> None:
    async with pausable("missing") as engine:
        await engine.receive()
        assert await engine.receive() == Failed(message="the checkpoint has no config.json")
        assert await engine.receive() is None
        assert await engine.exit_status() == 1
        assert "Traceback" not in await engine.log()


async def test_unexpected_error_while_loading_ends_the_process() -> None:
    async with pausable("broken") as engine:
        await engine.receive()
        assert await engine.receive() is None
        assert await engine.exit_status() == 1
        assert "RuntimeError: out of order" in await engine.log()


@pytest.mark.parametrize("num_starts", [0, 2])
async def test_exits_unless_it_receives_exactly_one_start(num_starts: int) -> None:
    async with pausable(None) as engine:
        for _ in range(num_starts):
            engine.post(Start(config=EngineConfig(model_path="model")))
        if num_starts == 0:
            engine.post(request())
        assert await engine.exit_status() == 1
        assert "Start" in await engine.log()


@asynccontextmanager
async def serving(
    model_path: Path, on_stats: Callable[[StepStats], None] | None = None
) -> AsyncGenerator[EngineClient]:
    """Starts a client of `python -m glimpse.engine.worker.process` that has loaded a checkpoint."""
    config = EngineConfig(
        model_path=str(model_path), device="cpu", dtype="float32", kv_cache_bytes=4 << 20, num_threads=1
    )
    client = EngineClient(config, on_stats=on_stats)
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


def greedy(request_id: str, max_tokens: int = 12) -> Generate:
    return Generate(
        request_id=request_id,
        token_ids=list(range(20, 40)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
    )


def greedy_about_an_image(request_id: str, model: ModelConfig, shade: int) -> Generate:
    """The image has 56 x 56 pixels, which are 4 x 4 patches and 2 x 2 tokens."""
    span = MediaSpan(kind=MediaKind.IMAGE, start=2, num_tokens=4, key=bytes([shade]) * 32, grid=(1, 4, 4))
    image = MediaInput(span=span, content=memoryview(bytes([shade]) * (56 * 56 * 3)))
    sampling = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    token_ids = [20, 19, *[model.placeholder_ids["image"]] * 4, 21, 22]
    return Generate(request_id=request_id, token_ids=token_ids, media=[image], sampling=sampling)


async def tokens_of(client: EngineClient, request: Generate) -> list[int]:
    events = [event async for event in client.generate(request)]
    assert events[-1].finish is FinishReason.LENGTH, events[-1]
    return [token_id for event in events for token_id in event.token_ids]


async def test_real_engine_answers_and_survives_group_signals(tiny_checkpoint: Path) -> None:
    model = load_model_config(tiny_checkpoint)
    stats: list[StepStats] = []
    async with serving(tiny_checkpoint, stats.append) as client:
        alone = await tokens_of(client, greedy("alone"))
        assert len(alone) == 12
        assert client.pid is not None
        os.kill(client.pid, signal.SIGINT)
        os.kill(client.pid, signal.SIGTERM)
        dark, light, text = await asyncio.gather(
            tokens_of(client, greedy_about_an_image("dark", model, 0)),
            tokens_of(client, greedy_about_an_image("light", model, 250)),
            tokens_of(client, greedy("text")),
        )
        assert text == alone
        assert dark != light
        assert sum(step.num_encoded_media for step in stats) == 2


async def test_real_engine_drops_a_request_whose_consumer_leaves(tiny_checkpoint: Path) -> None:
    stats: list[StepStats] = []
    async with serving(tiny_checkpoint, stats.append) as client:
        async with aclosing(client.generate(greedy("long", max_tokens=3000))) as events:
            async for event in events:
                if event.token_ids:
                    break
        await until(lambda: not stats[-1].num_running and not stats[-1].num_used_blocks)
        assert sum(step.num_generated_tokens for step in stats) < 3000


async def test_real_engine_gives_the_same_answers_after_a_restart(tiny_checkpoint: Path) -> None:
    async with serving(tiny_checkpoint) as client:
        before = await tokens_of(client, greedy("before"))
        async with aclosing(client.generate(greedy("long", 3000))) as events:
            assert client.pid is not None
            await anext(events)
            os.kill(client.pid, signal.SIGKILL)
            last = [event async for event in events][-1]
            assert last.error is EngineErrorCode.DIED
            assert client.state is EngineState.RESTARTING
        await until(lambda: client.state is EngineState.READY)
        assert await tokens_of(client, greedy("after")) == before


async def test_real_engine_refuses_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        async with serving(tmp_path):
            pass


def _processor_ticks(pid: int) -> int:
    """Returns user and system time so far, in ticks of 10 ms."""
    fields = stat(pid)
    return int(fields[11]) + int(fields[12])


def _sleeps(pid: int) -> bool:
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "S" for stat in stats)


def scheduling_policies(pid: int) -> set[int]:
    """Policies of all threads of a process."""
    return {os.sched_getscheduler(int(thread.name)) for thread in Path(f"/proc/{pid}/task").iterdir()}


async def test_spare_imports_torch_under_a_policy_it_may_leave_and_loads_when_needed(tiny_checkpoint: Path) -> None:
    config = EngineConfig(model_path=str(tiny_checkpoint), device="cpu", kv_cache_bytes=4 << 20, num_threads=1)
    spare = await EngineChild.spawn(ENGINE_COMMAND)
    try:
        spare.channel.post(Prepare())
        pid = spare.process.pid
        await until(lambda: "libtorch_python" in Path(f"/proc/{pid}/maps").read_text())
        assert scheduling_policies(pid) == {os.SCHED_BATCH}  # leaving SCHED_IDLE takes CAP_SYS_NICE or RLIMIT_NICE
        spare.channel.post(Start(config=config))
        stages: list[str] = []
        while isinstance(message := await spare.channel.receive(), Loading):
            stages.append(message.stage)
        assert isinstance(message, Ready)
        assert stages[-1] == "ready"
        assert scheduling_policies(pid) == {os.SCHED_OTHER}
    finally:
        await spare.end(grace_seconds=0)


LOAD = """
import sys, torch
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.load_engine import load_core
load_core(EngineConfig(model_path=sys.argv[1], device="cpu", kv_cache_bytes=4 << 20), on_progress=lambda *_: None)
print(torch.cuda.is_initialized(), "sympy" in sys.modules)
"""


def test_loading_on_the_cpu_touches_no_gpu_and_imports_no_sympy(tiny_checkpoint: Path) -> None:
    """Torch imports sympy for some operations on tensors without values. That takes a tenth of an engine's start."""
    command = [sys.executable, "-c", LOAD, str(tiny_checkpoint)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False False\n"
