"""Several front ends on one engine: a real process that follows a script, behind the broker."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from glimpse.engine.client import supervisor
from glimpse.engine.client.broker import EngineBroker
from glimpse.engine.client.shared_engine import SharedEngine
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import (
    FinishReason,
    Generate,
    LoadAdapter,
    LoadedAdapter,
    Sibling,
    StepStats,
    TokenEvent,
)
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.client.scripted import scripted_command
from tests.waiting import until


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "INITIAL_BACKOFF_SECONDS", 0.01)


class Deployment:
    """A broker, and front ends that share its engine."""

    def __init__(self, folder: Path, script: str) -> None:
        self.states: list[EngineState] = []
        self.stats: list[StepStats] = []
        self.broker = EngineBroker(
            EngineConfig(model_path="script"),
            command=scripted_command(script, starts=folder / "starts"),
            on_state=lambda state, _: self.states.append(state),
            on_loading=lambda _: None,
            on_stats=self.stats.append,
            max_silence_seconds=300.0,
        )
        self.starts_file = folder / "starts"
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Deployment"]:
        async with self._stack:
            self._stack.push_async_callback(self.broker.stop)
            await self.broker.start()
            yield self

    async def add(self) -> "FrontEnd":
        front_end = FrontEnd(self.broker)
        self._stack.push_async_callback(front_end.stop)
        await front_end.engine.start()
        return front_end


class FrontEnd:
    """A front end of the broker, and what it was told."""

    def __init__(self, broker: EngineBroker) -> None:
        ours, theirs = socket.socketpair()
        self.states: list[EngineState] = []
        self.stats: list[StepStats] = []
        self.engine = SharedEngine(
            ours, on_state=lambda state, _: self.states.append(state), on_stats=self.stats.append
        )
        self.serving = asyncio.create_task(broker.serve(theirs))

    async def stop(self) -> None:
        await self.engine.stop()
        await asyncio.wait([self.serving])

    async def ask(
        self, name: str, *, token_ids: list[int] | None = None, siblings: int = 0, digest: bytes = b""
    ) -> list[TokenEvent]:
        """Sends a request whose id begins with `name` and returns its events."""
        request_id = self.engine.unique_id(f"{name}-")
        request = Generate(
            request_id=request_id,
            token_ids=token_ids or [1, 2, 3],
            sampling=SamplingParams(),
            digest=digest,
            siblings=[Sibling(request_id=f"{request_id}.{index}", seed=None) for index in range(siblings)],
        )
        return [event async for event in self.engine.generate(request)]


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(tmp_path, "ready").running() as running:
        yield running


async def test_front_ends_get_their_own_events(deployment: Deployment) -> None:
    front_ends = [await deployment.add() for _ in range(3)]
    answers = await asyncio.gather(
        *(
            front_end.ask("echo-of-one-name", token_ids=[10 * number + index, 100, 101])
            for index in range(5)
            for number, front_end in enumerate(front_ends)
        )
    )
    tokens = [[token_id for event in events for token_id in event.token_ids] for events in answers]
    assert tokens == [[10 * number + index, 100, 101] for index in range(5) for number in range(3)]
    assert all(events[-1].finish is FinishReason.STOP for events in answers)
    assert deployment.broker.num_open == 0


async def test_siblings_belong_to_the_front_end_of_their_request(deployment: Deployment) -> None:
    first, second = await deployment.add(), await deployment.add()
    events, others = await asyncio.gather(first.ask("echo", siblings=2), second.ask("echo"))
    assert sum(event.finish is not None for event in events) == 3
    assert sum(event.finish is not None for event in others) == 1
    assert deployment.broker.num_open == 0


async def test_all_hear_statistics_and_the_engine_becoming_ready(deployment: Deployment) -> None:
    front_ends = [await deployment.add() for _ in range(2)]
    assert [front_end.states for front_end in front_ends] == [[EngineState.READY]] * 2
    assert front_ends[0].engine.ready == deployment.broker.ready
    await front_ends[0].ask("echo")
    await until(lambda: len(front_ends[1].stats) == len(deployment.stats))
    assert front_ends[1].stats == deployment.stats != []


async def test_all_hear_of_an_adapter_that_one_loads(deployment: Deployment) -> None:
    first, second = await deployment.add(), await deployment.add()
    loading = LoadAdapter(request_id="load", name="a", path="/a")
    assert (await first.engine.change_adapters(loading)).finish is FinishReason.STOP
    loaded = {"a": LoadedAdapter(digest=b"d", path="/a")}
    assert first.engine.ready is not None
    assert first.engine.ready.adapters == loaded
    await until(lambda: second.engine.ready is not None and second.engine.ready.adapters == loaded)
    assert (await deployment.add()).engine.ready == first.engine.ready
    assert (second.states, deployment.broker.num_open) == ([EngineState.READY], 0)


async def test_front_end_that_leaves_has_its_requests_cancelled_and_no_others(deployment: Deployment) -> None:
    leaving, staying = await deployment.add(), await deployment.add()
    lost = [asyncio.create_task(leaving.ask("hold")) for _ in range(3)]
    kept = asyncio.create_task(staying.ask("hold"))
    await until(lambda: deployment.broker.num_open == 4)
    await leaving.stop()
    await until(lambda: deployment.broker.num_open == 1)
    for task in lost:
        (last,) = [event for event in await task if event.finish is not None]
        assert (last.finish, last.error) == (FinishReason.ERROR, EngineErrorCode.UNAVAILABLE)
    assert not kept.done()
    kept.cancel()
    await until(lambda: deployment.broker.num_open == 0)


async def test_cancelled_request_ends_in_the_engine_too(deployment: Deployment) -> None:
    front_end = await deployment.add()
    task = asyncio.create_task(front_end.ask("hold"))
    await until(lambda: deployment.broker.num_open == 1)
    task.cancel()
    await until(lambda: deployment.broker.num_open == 0)
    assert (await front_end.ask("echo"))[-1].finish is FinishReason.STOP


async def test_engine_that_dies_ends_the_requests_of_all_and_serves_them_again(deployment: Deployment) -> None:
    front_ends = [await deployment.add() for _ in range(2)]
    tasks = [asyncio.create_task(front_end.ask("hold")) for front_end in front_ends]
    await until(lambda: deployment.broker.num_open == 2)
    os.kill(int(deployment.starts_file.read_text().split()[-1]), signal.SIGKILL)
    for task in tasks:
        events = await task
        assert (events[-1].finish, events[-1].error) == (FinishReason.ERROR, EngineErrorCode.DIED)
    for front_end in front_ends:
        await until(lambda front_end=front_end: front_end.engine.state is EngineState.READY)
        assert front_end.states == [EngineState.READY, EngineState.RESTARTING, EngineState.READY]
        assert (await front_end.ask("echo"))[-1].finish is FinishReason.STOP


async def test_all_hear_of_a_stalled_engine_and_keep_their_requests(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MIN_STALL_SHARE", 0.001)
    monkeypatch.setattr(supervisor, "MAX_STALL_SHARE", 0.001)
    front_ends = [await deployment.add() for _ in range(2)]
    # The watch has begun with the shares of a real server: a restart begins another one.
    os.kill(int(deployment.starts_file.read_text().split()[-1]), signal.SIGKILL)
    for front_end in front_ends:
        await until(lambda front_end=front_end: len(front_end.states) == 3)
    held = asyncio.create_task(front_ends[0].ask("hold"))
    for front_end in front_ends:
        await until(lambda front_end=front_end: EngineState.STALLED in front_end.states)
    assert (await front_ends[1].ask("echo"))[-1].finish is FinishReason.STOP
    for front_end in front_ends:  # which is stalled again soon
        await until(lambda front_end=front_end: front_end.states[3:5] == [EngineState.STALLED, EngineState.READY])
    assert not held.done()
    held.cancel()


async def test_prompt_that_killed_the_engine_twice_is_refused_at_every_front_end(deployment: Deployment) -> None:
    front_ends = [await deployment.add() for _ in range(2)]
    for number, front_end in enumerate(front_ends, start=1):
        (event,) = await front_end.ask("garble", digest=b"deadly")
        assert event.error is EngineErrorCode.DIED
        await until(lambda number=number: deployment.states.count(EngineState.READY) == number + 1)
        await until(lambda: all(each.engine.state is EngineState.READY for each in front_ends))
    for front_end in front_ends:
        events = await front_end.ask("garble", digest=b"deadly", siblings=1)
        assert [event.error for event in events] == [EngineErrorCode.SUSPECTED] * 2
        assert (await front_end.ask("echo"))[-1].finish is FinishReason.STOP
    assert deployment.broker.num_open == 0


async def test_request_that_is_sent_while_the_engine_restarts_ends_once(deployment: Deployment) -> None:
    """The request reaches the broker when that knows already, and its front end does not."""
    front_end = await deployment.add()
    os.kill(int(deployment.starts_file.read_text().split()[-1]), signal.SIGKILL)
    answers = await asyncio.gather(*(front_end.ask("echo") for _ in range(50)))
    for events in answers:
        assert [event.finish is not None for event in events].count(True) == 1
        assert events[-1].finish is not None
    await until(lambda: front_end.engine.state is EngineState.READY)
    await until(lambda: deployment.broker.num_open == 0)


async def test_front_end_that_comes_before_the_engine_is_ready_waits(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "ready")
    front_end = FrontEnd(deployment.broker)
    starting = asyncio.create_task(front_end.engine.start())
    await asyncio.sleep(0)
    assert front_end.engine.state is EngineState.LOADING
    async with deployment.running():
        assert await starting == deployment.broker.ready
        await front_end.stop()


async def test_engine_that_cannot_serve_is_reported(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, "dies")
    front_end = FrontEnd(deployment.broker)
    starting = asyncio.create_task(front_end.engine.start())
    with pytest.raises(EngineError):
        await deployment.broker.start()
    with pytest.raises(EngineError, match="the engine is failed"):
        await starting
    await front_end.stop()
    await deployment.broker.stop()


async def test_front_end_without_broker_ends_its_requests(deployment: Deployment) -> None:
    front_end = await deployment.add()
    task = asyncio.create_task(front_end.ask("hold"))
    await until(lambda: deployment.broker.num_open == 1)
    front_end.serving.cancel()
    assert (await task)[-1].error is EngineErrorCode.UNAVAILABLE
    assert front_end.engine.state is EngineState.FAILED
