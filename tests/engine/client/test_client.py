"""The client of the engine process, against a real process that follows a script at the other end of a real socket."""

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import uvloop

from glimpse import frames
from glimpse.engine.client import child, supervisor
from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.mailbox import Mailbox
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import (
    FinishReason,
    Generate,
    RequestStats,
    Sibling,
    Step,
    StepStats,
    TokenEvent,
    TokenLogprobs,
)
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.native.process_table import is_alive
from glimpse.streams import Receiver, Stream
from tests.engine.client.scripted import Engine
from tests.paths import ROOT
from tests.server.services.step_stats import stats
from tests.waiting import eventually, until


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine that serves, and restarts when it dies."""
    async with Engine(tmp_path, "ready") as engine:
        yield engine


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "INITIAL_BACKOFF_SECONDS", 0.01)


def request(request_id: str, token_ids: list[int] | None = None) -> Generate:
    return Generate(request_id=request_id, token_ids=token_ids or [1, 2, 3], sampling=SamplingParams())


async def events_of(client: EngineClient, request: Generate) -> list[TokenEvent]:
    return [event async for event in client.generate(request)]


async def held(client: EngineClient, request_id: str) -> "asyncio.Task[list[TokenEvent]]":
    """Starts a request and waits for its first token."""
    first = asyncio.Event()

    async def consume() -> list[TokenEvent]:
        events: list[TokenEvent] = []
        async for event in client.generate(request(request_id)):
            events.append(event)
            first.set()
        return events

    task = asyncio.create_task(consume())
    await first.wait()
    return task


def last_of(task: "asyncio.Task[list[TokenEvent]]") -> TokenEvent:
    """Returns the last event of a finished request, the only one with `finish` set."""
    *earlier, last = task.result()
    assert all(event.finish is None for event in earlier)
    return last


async def test_start_reports_progress_and_ready(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "ready")
    assert engine.client.state is EngineState.LOADING
    ready = await engine.client.start()
    assert ready.max_model_len == 64
    assert engine.client.ready == ready
    assert [loading.stage for loading in engine.loading] == ["reading the script"]
    assert engine.client.pid == engine.pids[0]
    await engine.client.stop()
    assert engine.states == [EngineState.READY, EngineState.STOPPED]
    assert engine.client.pid is None


async def test_request_gets_tokens_in_order_and_one_last_event(engine: Engine) -> None:
    events = await events_of(engine.client, request("echo", [5, 6, 7, 8]))
    assert [token_id for event in events for token_id in event.token_ids] == [5, 6, 7, 8]
    assert [logprobs.logprob for event in events for logprobs in event.logprobs] == [-5, -6, -7, -8]
    assert [event.finish for event in events if event.finish] == [FinishReason.STOP]
    assert events[-1].finish is FinishReason.STOP


async def test_concurrent_requests_get_their_own_tokens(engine: Engine) -> None:
    prompts = {f"echo-{i}": [i, i + 1, i + 2] for i in range(20)}
    answers = await asyncio.gather(
        *(events_of(engine.client, request(request_id, ids)) for request_id, ids in prompts.items())
    )
    assert [[i for event in events for i in event.token_ids] for events in answers] == list(prompts.values())


async def test_first_tokens_wake_their_consumers_before_others(engine: Engine) -> None:
    woken: list[str] = []

    async def consume(request_id: str) -> None:
        mailbox = engine.client._mailboxes[request_id] = Mailbox()  # pyright: ignore[reportPrivateUsage]
        if request_id != "new":
            mailbox.put(TokenEvent(request_id=request_id))
            await mailbox.take()
        await mailbox.take()
        woken.append(request_id)

    names = ["old 1", "old 2", "new"]
    consumers = [asyncio.create_task(consume(name)) for name in names]
    await asyncio.sleep(0)
    events = [TokenEvent(request_id=name, token_ids=[1], finish=FinishReason.STOP) for name in names]
    await engine.client._deliver(Step(events=events, stats=stats(running=3)))  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(*consumers)
    assert woken == ["new", "old 1", "old 2"]


async def test_others_run_while_the_events_of_a_large_step_are_delivered(engine: Engine) -> None:
    woken: list[str] = []

    async def consume(request_id: str) -> None:
        mailbox = engine.client._mailboxes[request_id] = Mailbox()  # pyright: ignore[reportPrivateUsage]
        await mailbox.take()
        woken.append(request_id)

    async def other() -> int:
        await asyncio.sleep(0)
        return len(woken)

    names = [str(index) for index in range(64)]
    consumers = [asyncio.create_task(consume(name)) for name in names]
    await asyncio.sleep(0)
    events = [TokenEvent(request_id=name, token_ids=[1], finish=FinishReason.STOP) for name in names]
    step = Step(events=events, stats=stats(running=64))
    begun_with, _ = await asyncio.gather(other(), engine.client._deliver(step))  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(*consumers)
    assert begun_with <= 16
    assert sorted(woken) == sorted(names)


async def test_consumer_that_leaves_during_a_delivery_costs_no_other_its_events(engine: Engine) -> None:
    names = [str(index) for index in range(40)]
    mailboxes = {name: Mailbox() for name in names}
    engine.client._mailboxes |= mailboxes  # pyright: ignore[reportPrivateUsage]
    events = [TokenEvent(request_id=name, token_ids=[1], finish=FinishReason.STOP) for name in names]
    step = Step(events=events, stats=stats(running=40))
    delivery = asyncio.create_task(engine.client._deliver(step))  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0)
    del engine.client._mailboxes["39"]  # pyright: ignore[reportPrivateUsage]
    await delivery
    assert [(await mailboxes[name].take())[0].token_ids for name in names[:39]] == [[1]] * 39
    assert not engine.client._mailboxes  # pyright: ignore[reportPrivateUsage]


async def test_events_of_a_slow_consumer_are_merged(engine: Engine) -> None:
    async with aclosing(engine.client.generate(request("echo", [5, 6, 7, 8]))) as events:
        taken = [await anext(events)]
        await until(lambda: len(engine.stats) == 5)
        taken += [event async for event in events]
    assert len(taken) <= 2
    assert [token_id for event in taken for token_id in event.token_ids] == [5, 6, 7, 8]
    assert [logprobs.logprob for event in taken for logprobs in event.logprobs] == [-5, -6, -7, -8]
    assert taken[-1].finish is FinishReason.STOP
    assert taken[-1].stats.num_cached_tokens == 2


def received(mailboxes: list[Mailbox], receiver: Receiver[TokenEvent]) -> "asyncio.Task[list[int]]":
    """Consumes the events of a mailbox that the receiver leaves, up to the last one; returns their tokens."""

    async def values(own: Stream[TokenEvent]) -> AsyncGenerator[TokenEvent, None]:
        mailboxes.append(Mailbox(own))
        while True:
            for event in await mailboxes[0].take():
                yield event

    async def consume() -> list[int]:
        tokens = list[int]()
        async with aclosing(stream):
            async for event in stream:
                tokens += event.token_ids
                if event.finish is not None:
                    break
        return tokens

    stream = Stream(values)
    stream.receiver = receiver
    return asyncio.create_task(consume())


async def test_receiver_gets_events_that_the_consumer_waits_for() -> None:
    mailboxes, taken, free = list[Mailbox](), list[int](), True
    consumer = received(mailboxes, Receiver(lambda: free, lambda event: taken.extend(event.token_ids)))

    def put(number: int, finish: FinishReason | None = None) -> None:
        mailboxes[0].put(TokenEvent(request_id="r", token_ids=[number], finish=finish))

    await asyncio.sleep(0)
    put(1)
    free = False
    put(2)
    free = True
    put(3)  # the consumer has not taken the one before
    assert taken == [1]
    await asyncio.sleep(0)
    put(4)
    put(5, FinishReason.STOP)
    assert await consumer == [2, 3, 5]
    assert taken == [1, 4]


@pytest.mark.parametrize(("error", "raised"), [(LookupError, LookupError), (StopIteration, RuntimeError)])
async def test_consumer_raises_the_error_of_its_receiver(error: type[Exception], raised: type[Exception]) -> None:
    mailboxes = list[Mailbox]()
    consumer = received(mailboxes, Receiver(lambda: True, Mock(side_effect=error)))
    await asyncio.sleep(0)
    mailboxes[0].put(TokenEvent(request_id="r", token_ids=[1]))  # raises nothing: others' events follow
    with pytest.raises(raised):
        await consumer


async def test_merged_events_keep_what_the_first_says() -> None:
    mailbox, scores = Mailbox(), [TokenLogprobs(logprob=-1.5, rank=2)]
    stats = RequestStats(queue_seconds=0.5, encode_seconds=0.25)
    first = TokenEvent(request_id="r", token_ids=[1], stats=stats, prompt_logprobs=scores)
    mailbox.put(first)
    mailbox.put(TokenEvent(request_id="r", token_ids=[2]))
    (event,) = await mailbox.take()
    assert event == msgspec.structs.replace(first, token_ids=[1, 2])


async def test_unread_log_probabilities_are_kept_small_and_taken_a_few_at_a_time() -> None:
    top = [(token_id, -token_id / 7) for token_id in range(1000, 1020)]

    def event(number: int) -> TokenEvent:
        logprobs = TokenLogprobs(logprob=number / 7, top=[(token_id, each * number) for token_id, each in top])
        return TokenEvent(request_id="r", token_ids=[number], logprobs=[logprobs])

    mailbox, written = Mailbox(), [msgspec.msgpack.encode(event(number)) for number in range(1, 401)]
    tracemalloc.start()
    for each in written:
        mailbox.put(msgspec.msgpack.decode(each, type=TokenEvent))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 3 * sum(map(len, written))
    taken = list[TokenEvent]()
    while mailbox.unread:
        (merged,) = await mailbox.take()
        assert len(merged.token_ids) == len(merged.logprobs) == 8
        taken.append(merged)
    assert [token_id for each in taken for token_id in each.token_ids] == list(range(1, 401))
    assert [each.logprobs[0] for each in taken] == [event(number).logprobs[0] for number in range(1, 401, 8)]


async def test_closing_the_iterator_early_cancels_the_request(engine: Engine) -> None:
    async with aclosing(engine.client.generate(request("hold"))) as events:
        await anext(events)
        assert engine.stats[-1].num_running == 1
    await until(lambda: engine.stats[-1].num_running == 0)
    assert await events_of(engine.client, request("echo"))


async def test_end_of_an_abandoned_request_is_told(engine: Engine) -> None:
    ends: list[TokenEvent] = []
    async with aclosing(engine.client.generate(request("hold"), on_abandoned=ends.append)) as events:
        await anext(events)
    await until(lambda: bool(ends))
    assert [(event.request_id, event.finish) for event in ends] == [("hold", FinishReason.CANCELLED)]
    await events_of(engine.client, request("echo"))
    async with aclosing(engine.client.generate(request("rank"), on_abandoned=ends.append)) as events:
        assert (await anext(events)).finish, "it has ended and was read"
    assert len(ends) == 1


async def test_end_that_nobody_reads_is_told(engine: Engine) -> None:
    ends: list[TokenEvent] = []
    async with aclosing(engine.client.generate(request("hold"), on_abandoned=ends.append)) as events:
        await anext(events)
        last = TokenEvent(request_id="hold", finish=FinishReason.STOP)
        await engine.client._deliver(Step(events=[last], stats=stats(running=1)))  # pyright: ignore[reportPrivateUsage]
    assert [event.finish for event in ends] == [FinishReason.STOP]


async def test_cancelled_consumer_cancels_its_request(engine: Engine) -> None:
    task = await held(engine.client, "hold")
    task.cancel()
    await until(lambda: engine.stats[-1].num_running == 0)


async def test_finished_answer_left_unread_is_not_cancelled(engine: Engine) -> None:
    async with aclosing(engine.client.generate(request("echo", [5]))) as events:
        await anext(events)
        await until(lambda: len(engine.stats) == 2)
    await events_of(engine.client, request("echo", [5]))
    assert len(engine.stats) == 4  # a Cancel would have caused another step


async def test_client_refuses_request_id_in_use(engine: Engine) -> None:
    task = await held(engine.client, "hold")
    with pytest.raises(ValueError, match="'hold' is already in use"):
        await events_of(engine.client, request("hold"))
    assert not task.done()
    task.cancel()


async def test_request_over_the_message_limit_is_refused_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    task = await held(engine.client, "hold")
    monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1000)
    [event] = await events_of(engine.client, request("echo-large", [70_000] * 1000))
    assert (event.finish, event.error) == (FinishReason.ERROR, EngineErrorCode.UNSUPPORTED)
    assert "at most 1000" in event.message
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGRTMIN + 1])
async def test_killed_engine_ends_requests_as_died_and_restarts(engine: Engine, how: int) -> None:
    tasks = [await held(engine.client, f"hold-{i}") for i in range(5)]
    os.kill(engine.pids[0], how)
    await asyncio.wait(tasks)
    for task in tasks:
        assert last_of(task).error is EngineErrorCode.DIED
        assert last_of(task).message == "the engine exited; retry the request"
    await until(lambda: engine.client.state is EngineState.READY)
    assert engine.states == [EngineState.READY, EngineState.RESTARTING, EngineState.READY]
    assert engine.client.pid == engine.pids[1]
    assert (await events_of(engine.client, request("echo")))[-1].finish is FinishReason.STOP


async def test_hung_engine_is_restarted_and_idle_one_is_not(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready", max_silence_seconds=1.0) as engine:
        await asyncio.sleep(2.0)
        (pid,) = engine.pids
        events = [event async for event in engine.client.generate(request("hold"))]
        assert (events[-1].finish, events[-1].error) == (FinishReason.ERROR, EngineErrorCode.DIED)
        await until(lambda: engine.client.state is EngineState.READY)
        assert not is_alive(pid)
        events = [event async for event in engine.client.generate(request("echo"))]
        assert events[-1].finish is FinishReason.STOP
        assert len(engine.pids) == 2


async def test_hung_engine_is_restarted_although_the_client_has_left(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready", max_silence_seconds=1.5) as engine:
        task = await held(engine.client, "hold")
        os.kill(engine.pids[0], signal.SIGSTOP)
        task.cancel()
        await until(lambda: len(engine.pids) >= 2)


async def test_engine_with_an_unusual_step_is_stalled_until_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(supervisor, "MIN_STALL_SHARE", 0.001)
    monkeypatch.setattr(supervisor, "MAX_STALL_SHARE", 0.001)
    async with Engine(tmp_path, "ready", max_silence_seconds=300.0) as engine:
        task = await held(engine.client, "hold")
        await until(lambda: EngineState.STALLED in engine.states)
        assert "the engine is stalled: 1 requests are open, and a step takes" in caplog.text
        assert (await events_of(engine.client, request("echo")))[-1].finish is FinishReason.STOP
        assert engine.states[:3] == [EngineState.READY, EngineState.STALLED, EngineState.READY]
        assert not task.done()
        task.cancel()


async def test_prompt_that_was_in_flight_at_two_deaths_is_refused(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready") as engine:
        for death in range(2):
            deadly = msgspec.structs.replace(request(f"garble-{death}"), digest=b"deadly")
            assert (await events_of(engine.client, deadly))[-1].error is EngineErrorCode.DIED
            await until(lambda: engine.client.state is EngineState.READY)
        siblings = [Sibling(request_id="garble-4", seed=None)]
        again = msgspec.structs.replace(request("garble-3"), digest=b"deadly", siblings=siblings)
        events = await events_of(engine.client, again)
        assert [(event.request_id, event.error) for event in events] == [
            ("garble-3", EngineErrorCode.SUSPECTED),
            ("garble-4", EngineErrorCode.SUSPECTED),
        ]
        assert (await events_of(engine.client, request("echo")))[-1].finish is FinishReason.STOP
        assert len(engine.pids) == 3


async def test_prompt_is_not_suspected_where_somebody_kills_the_engine(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready") as engine:
        for kills in range(1, 3):
            innocent = msgspec.structs.replace(request(f"hold-{kills}"), digest=b"innocent")
            task = asyncio.create_task(events_of(engine.client, innocent))
            await until(lambda kills=kills: len(engine.stats) == kills)
            os.kill(engine.pids[-1], signal.SIGKILL)
            assert (await task)[-1].error is EngineErrorCode.DIED
            await until(lambda: engine.client.state is EngineState.READY)
        innocent = msgspec.structs.replace(request("echo"), digest=b"innocent")
        assert (await events_of(engine.client, innocent))[-1].finish is FinishReason.STOP


async def test_engine_that_sends_messages_is_not_hung(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready", max_silence_seconds=1.5) as engine:
        async with aclosing(engine.client.generate(request("hold"))) as held:
            await anext(held)
            for number in range(8):
                await asyncio.sleep(0.25)
                assert [event async for event in engine.client.generate(request(f"echo-{number}"))]
        assert len(engine.pids) == 1


async def test_engine_that_sends_invalid_messages_is_restarted(engine: Engine) -> None:
    [event] = await events_of(engine.client, request("garble"))
    assert event.error is EngineErrorCode.DIED
    await until(lambda: engine.client.state is EngineState.READY)
    assert len(engine.pids) == 2
    assert not is_alive(engine.pids[0])


async def test_requests_during_a_restart_are_unavailable_at_once(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "ready", "hangs")
    await engine.client.start()
    os.kill(engine.pids[0], signal.SIGKILL)
    await until(lambda: len(engine.loading) == 2)
    [event] = await events_of(engine.client, request("echo"))
    assert (event.finish, event.error) == (FinishReason.ERROR, EngineErrorCode.UNAVAILABLE)
    assert "restarting" in event.message
    await engine.client.stop()
    assert not is_alive(engine.pids[1])


async def test_restarts_continue_until_one_succeeds(tmp_path: Path) -> None:
    async with Engine(tmp_path, "ready", "dies", "dies", "ready") as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        await until(lambda: len(engine.states) == 3)
        assert engine.states == [EngineState.READY, EngineState.RESTARTING, EngineState.READY]
        assert len(engine.pids) == 4


async def test_backoff_doubles_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 0.03)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted_sleep(seconds: float) -> None:
        if seconds in (0.01, 0.02, 0.03):
            pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noted_sleep)
    async with Engine(tmp_path, "ready", "dies", "dies", "dies", "ready") as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        await until(lambda: len(engine.states) == 3)
        assert pauses == [0.01, 0.02, 0.03, 0.03]
        monkeypatch.setattr(supervisor, "STABLE_SECONDS", 0.0)
        os.kill(engine.pids[-1], signal.SIGKILL)
        await until(lambda: len(engine.states) == 5)
        assert pauses[4:] == [0.01]


async def test_unusable_checkpoint_fails_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = Engine(tmp_path, "failed")
    with pytest.raises(CheckpointError, match="the script says that it fails"):
        await engine.client.start()
    assert engine.states == [EngineState.FAILED]
    assert "the engine process exited with status" in caplog.text, "it is not killed"
    [event] = await events_of(engine.client, request("echo"))
    assert event.error is EngineErrorCode.UNAVAILABLE
    assert engine.client.pid is None
    assert len(engine.pids) == 1
    await engine.client.stop()


async def test_restart_without_its_checkpoint_is_repeated_until_that_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(tmp_path, "ready", "failed", "failed", "ready") as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        await until(lambda: len(engine.states) == 3)
        assert engine.states == [EngineState.READY, EngineState.RESTARTING, EngineState.READY]
        assert len(engine.pids) == 4
        assert caplog.text.count("the script says that it fails; the next attempt is in") == 2
        assert "is killed" not in caplog.text


async def test_engine_that_dies_at_its_first_start_is_not_restarted(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "dies")
    with pytest.raises(EngineError, match="while it loaded, the engine exited with status 3") as raised:
        await engine.client.start()
    assert raised.value.code is EngineErrorCode.UNAVAILABLE
    assert engine.client.state is EngineState.FAILED
    assert len(engine.pids) == 1
    await engine.client.stop()


@pytest.mark.parametrize("has_memory", [True, False])
async def test_death_of_the_engine_is_a_warning_that_names_a_lack_of_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, has_memory: bool
) -> None:
    kills = itertools.repeat(7) if has_memory else itertools.count(7)
    monkeypatch.setattr(child, "count_oom_kills", lambda: next(kills))
    async with Engine(tmp_path, "ready") as engine:
        os.kill(engine.pids[0], signal.SIGKILL)
        await until(lambda: len(engine.states) == 3)
        warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
        why = "" if has_memory else "; Linux has killed processes for lack of memory since it started"
        assert warnings == [
            "the engine is restarting: the engine exited",
            f"the engine process was ended by: Killed{why}",
        ]


async def test_missing_program_fails_the_start(tmp_path: Path) -> None:
    absent = EngineClient(EngineConfig(model_path="script"), command=[str(tmp_path / "absent")])
    with pytest.raises(EngineError, match="cannot be started"):
        await absent.start()
    assert absent.state is EngineState.FAILED


async def test_stop_cancels_requests_and_ends_the_process(engine: Engine) -> None:
    tasks = [await held(engine.client, f"hold-{i}") for i in range(3)]
    await engine.client.stop()
    await asyncio.wait(tasks)
    assert [last_of(task).finish for task in tasks] == [FinishReason.CANCELLED] * 3
    assert not is_alive(engine.pids[0])
    await engine.client.stop()
    assert engine.states == [EngineState.READY, EngineState.STOPPED]
    [event] = await events_of(engine.client, request("echo"))
    assert event.error is EngineErrorCode.UNAVAILABLE


async def test_stop_kills_an_engine_that_does_not_exit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.05)
    task = await held(engine.client, "hold")
    os.kill(engine.pids[0], signal.SIGSTOP)
    await engine.client.stop()
    await asyncio.wait([task])
    assert last_of(task).error is EngineErrorCode.UNAVAILABLE
    assert not is_alive(engine.pids[0])


async def test_stop_ends_a_loading_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "hangs")
    starting = asyncio.create_task(engine.client.start())
    await until(lambda: bool(engine.loading))
    await engine.client.stop()
    with pytest.raises(EngineError):
        await starting
    assert engine.client.state is EngineState.STOPPED
    assert not is_alive(engine.pids[0])


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "hangs")
    starting = asyncio.create_task(engine.client.start())
    await until(lambda: bool(engine.loading))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_alive(engine.pids[0])


async def test_callback_that_raises_leaves_no_request_waiting(tmp_path: Path) -> None:
    def fail(_stats: StepStats) -> None:
        raise RuntimeError("a listener's fault")

    engine = Engine(tmp_path, "ready", on_stats=fail)
    await engine.client.start()
    task = await held(engine.client, "hold")
    await asyncio.wait([task])
    assert last_of(task).error is EngineErrorCode.UNAVAILABLE
    assert engine.client.state is EngineState.FAILED
    await engine.client.stop()
    assert not is_alive(engine.pids[0])


def test_client_works_in_uvloop(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(tmp_path, "ready")
        await engine.client.start()
        task = await held(engine.client, "hold")
        os.kill(engine.pids[0], signal.SIGKILL)
        await asyncio.wait([task])
        assert last_of(task).error is EngineErrorCode.DIED
        await until(lambda: engine.client.state is EngineState.READY)
        events = await events_of(engine.client, request("echo", [5, 6]))
        assert [token_id for event in events for token_id in event.token_ids] == [5, 6]
        await engine.client.stop()
        assert not is_alive(engine.pids[1])

    uvloop.run(run())


def test_the_engine_ends_with_its_front_end(tmp_path: Path) -> None:
    code = f"""
import asyncio
import itertools
from pathlib import Path
from tests.engine.client.scripted import Engine
from glimpse.native.process_table import is_alive
from tests.waiting import until

async def main():
    await Engine(Path({str(tmp_path)!r}), "ready").client.start()
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as front_end:
        assert front_end.stdout is not None
        assert front_end.stdout.readline() == b"started\n"
        pid = int((tmp_path / "starts").read_text())
        assert is_alive(pid)
        front_end.kill()
    assert eventually(lambda: not is_alive(pid))


async def test_siblings_are_answered_with_their_request(engine: Engine) -> None:
    siblings = [Sibling(request_id=f"echo-{name}", seed=None) for name in "bc"]
    generate = msgspec.structs.replace(request("echo-a", [7, 8]), siblings=siblings)
    tokens: dict[str, list[int]] = {}
    async for event in engine.client.generate(generate):
        tokens.setdefault(event.request_id, []).extend(event.token_ids)
    assert tokens == {f"echo-{name}": [7, 8] for name in "abc"}


async def test_one_of_several_answers_can_be_cancelled(engine: Engine) -> None:
    siblings = [Sibling(request_id="hold-b", seed=None)]
    ends: list[str] = []
    async with aclosing(
        engine.client.generate(msgspec.structs.replace(request("hold-a"), siblings=siblings))
    ) as events:
        async for event in events:
            if event.finish is not None:
                ends.append(event.request_id)
                break
            engine.client.cancel("hold-b")
    assert ends == ["hold-b"]
    # Both are cancelled: the last step counts what the engine still holds.
    async for _ in engine.client.generate(request("echo-after")):
        pass
    assert engine.stats[-1].num_running == 0


async def test_engine_that_is_not_ready_refuses_every_sibling(tmp_path: Path) -> None:
    never_started = Engine(tmp_path, "ready").client
    siblings = [Sibling(request_id="echo-b", seed=None)]
    generate = msgspec.structs.replace(request("echo-a"), siblings=siblings)
    refusals = [(event.request_id, event.error) async for event in never_started.generate(generate)]
    assert refusals == [("echo-a", EngineErrorCode.UNAVAILABLE), ("echo-b", EngineErrorCode.UNAVAILABLE)]
