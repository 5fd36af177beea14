"""A rolling restart of all servers while streams begin all the time: each must get its whole answer."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.calls import http_session, record, rest_stream
from tests.chaos.questions import chat
from tests.chaos.transcript import Outcome, Transcript
from tests.rehearsal.mesh import Mesh

_HANG_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class Streams:
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    codes: Counter[str] = field(default_factory=Counter[str])
    most_at_once: int = 0
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return self.outcomes.total()

    @property
    def num_whole(self) -> int:
        return self.outcomes[Outcome.OK]


async def restart_all(mesh: Mesh, *, streams_per_second: float, tokens: int) -> Streams:
    """Restarts the servers in turn, under so many new streams per second."""
    found, stopping = Streams(), asyncio.Event()
    start = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_begin(mesh, found, stopping, streams_per_second, tokens))
        await asyncio.sleep(1)
        for number in range(len(mesh.replicas)):
            await mesh.restart(number)
        stopping.set()
    found.seconds = time.monotonic() - start
    return found


async def restart_under(mesh: Mesh, *, num_streams: int, tokens: int) -> Streams:
    """Restarts the servers in turn while so many clients stream, each one answer after another."""
    found, stopping = Streams(most_at_once=num_streams), asyncio.Event()
    start = time.monotonic()
    async with http_session(mesh.gateway.target.url) as session, asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(_stream_on(session, found, stopping, tokens))
        await asyncio.sleep(1)
        for number in range(len(mesh.replicas)):
            await mesh.restart(number)
        stopping.set()
    found.seconds = time.monotonic() - start
    return found


async def _stream_on(session: aiohttp.ClientSession, found: Streams, stopping: asyncio.Event, tokens: int) -> None:
    body = chat("Go on.", ignore_eos=True, max_completion_tokens=tokens)
    while not stopping.is_set():
        call = await record(rest_stream(session, body), Transcript(), seconds=_HANG_SECONDS)
        _count(found, call.transcript)


async def _begin(mesh: Mesh, found: Streams, stopping: asyncio.Event, per_second: float, tokens: int) -> None:
    body = chat("Go on.", ignore_eos=True, max_completion_tokens=tokens)
    next_start, running = time.monotonic(), set[asyncio.Task[None]]()
    async with http_session(mesh.gateway.target.url) as session, asyncio.TaskGroup() as tasks:

        async def stream() -> None:
            call = await record(rest_stream(session, body), Transcript(), seconds=_HANG_SECONDS)
            _count(found, call.transcript)

        while not stopping.is_set():
            running.add(tasks.create_task(stream()))
            running = {task for task in running if not task.done()}
            found.most_at_once = max(found.most_at_once, len(running))
            next_start += 1 / per_second
            await asyncio.sleep(max(0.0, next_start - time.monotonic()))


def _count(found: Streams, transcript: Transcript) -> None:
    verdict = transcript.verdict()
    found.outcomes[verdict.outcome] += 1
    if verdict.outcome is not Outcome.OK:
        found.codes[f"{verdict.outcome}: {verdict.code or verdict.detail}"] += 1
