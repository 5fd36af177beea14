"""Kills and stops of the server's processes."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import PIL.Image

from tests.chaos.attack import ENGINE_GONE, SERVER_GONE, Inside, ProcessAttack, meanwhile
from tests.chaos.calls import http_session, record, rest_stream, rest_unary
from tests.chaos.probes import NOT_SERVING
from tests.chaos.processes import FRONT_END, is_computing
from tests.chaos.questions import ask_about, chat, chat_with_image
from tests.chaos.stack import NotServingError
from tests.chaos.transcript import Outcome, Transcript
from tests.media.images import encode

_RECOVERY_SECONDS = 180.0
_WORKERS = "media workers"
STOPPED_FRONT_END = "stop-front-end"
_OBSERVER = "chaos-observer"
"""The API key of these requests, which must be answered while another attack floods the server."""


async def _kill_worker(inside: Inside) -> None:
    """Kills one that decodes an image; each image must be answered none the less."""
    salts = (f"{inside.rng.getrandbits(64):x}" for _ in range(inside.times(12)))
    async with http_session(inside.target.url, key=_OBSERVER) as session:
        sends = [rest_unary(session, _about_photo(salt)) for salt in salts]
        async with meanwhile(inside.ask_all(sends, tolerates=frozenset())):
            await _until_computing(inside, _WORKERS)
            await _kill_one(inside, _WORKERS)


def _about_photo(salt: str) -> dict[str, Any]:
    return chat_with_image(_photo(), cache_salt=salt, max_completion_tokens=1)


@cache
def _photo() -> bytes:
    """Noise of two megapixels, which take some time to decode."""
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1700, 3), dtype=np.uint8)
    return encode(PIL.Image.fromarray(pixels), "JPEG", quality=30)


def _kill_among_streams(role: str) -> Callable[[Inside], Coroutine[Any, Any, None]]:
    """An attack that kills a process among open streams and waits for the next right answer."""

    async def run(inside: Inside) -> None:
        # Another prompt each time: one that was in flight at two deaths in a row is refused.
        body = chat(f"Go on, {inside.rng.getrandbits(32)}.", ignore_eos=True, max_completion_tokens=200)
        async with http_session(inside.target.url, key=_OBSERVER) as session:
            sends = [rest_stream(session, body) for _ in range(inside.times(20))]
            async with meanwhile(inside.ask_all(sends, is_sse=True, tolerates=frozenset())):
                await asyncio.sleep(0.5 * inside.rng.random())
                await _kill_one(inside, role)

    return run


async def _kill_one(inside: Inside, role: str) -> None:
    """Kills a process of a role and waits until an answer is right again.

    The oldest engine serves; a younger one is a spare. Of other roles it is a process that computes, if any does.

    Raises:
        NotServingError: there is no such process, or no right answer afterwards.
    """
    pids = await _find(inside, role)
    computing = [pid for pid in pids if is_computing(pid)]
    pid = pids[0] if role == "engine" else inside.rng.choice(computing or pids)
    inside.counts["killed while it computed"] += is_computing(pid)
    start = time.monotonic()
    with suppress(ProcessLookupError):  # it has ended meanwhile; the next answer must be right all the same
        os.kill(pid, signal.SIGKILL)
    inside.counts["kills"] += 1
    await _recover(inside)
    inside.recoveries.append(time.monotonic() - start)


async def _find(inside: Inside, role: str) -> list[int]:
    """The processes of a role; another attack may have stopped them, so they are awaited."""
    deadline = time.monotonic() + _RECOVERY_SECONDS
    while time.monotonic() < deadline:
        if pids := inside.stack.pids(role):
            return pids
        await _recover(inside)  # starts workers, which a server has on demand
    raise NotServingError(f"no {role} to kill")


async def _until_computing(inside: Inside, role: str) -> None:
    """Waits until a process of a role computes, or for a second."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline and not any(map(is_computing, inside.stack.pids(role))):  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def _recover(inside: Inside) -> None:
    """Waits for a right answer about an image, whose encoding is not cached."""
    deadline = time.monotonic() + _RECOVERY_SECONDS
    while time.monotonic() < deadline:
        salt = f"{inside.rng.getrandbits(64):x}"
        async with http_session(inside.target.url, key=_OBSERVER) as session:
            send = rest_unary(session, ask_about("circle", salt, max_completion_tokens=1))
            call = await record(send, Transcript(needs_done=False), seconds=inside.hang_seconds)
        if call.transcript.verdict().outcome is Outcome.OK:
            return
        await asyncio.sleep(0.05)
    raise NotServingError(f"no right answer for {_RECOVERY_SECONDS:.0f} s after {inside.attack}")


def _stop(role: str, most_seconds: float) -> Callable[[Inside], Coroutine[Any, Any, None]]:
    """An attack that stops a process for a while and lets it go on."""

    async def run(inside: Inside) -> None:
        pids = inside.stack.pids(role)
        if not pids:
            inside.counts[f"no {role} to stop"] += 1
            return
        with suppress(ProcessLookupError):  # another attack may kill it
            os.kill(pids[0], signal.SIGSTOP)
            try:
                await asyncio.sleep(1 + (most_seconds - 1) * inside.rng.random())
            finally:
                os.kill(pids[0], signal.SIGCONT)
            inside.counts["stops"] += 1
        async with http_session(inside.target.url, key=_OBSERVER) as session:
            await inside.ask(rest_unary(session, chat("Say hello.", max_completion_tokens=1)))

    return run


ATTACKS = [
    ProcessAttack(
        name="kill-engine",
        summary="kill -9 of the engine",
        run=_kill_among_streams("engine"),
        tolerates=ENGINE_GONE,
        weight=2,
    ),
    ProcessAttack(name="kill-worker", summary="kill -9 of a media worker", run=_kill_worker, weight=2),
    ProcessAttack(
        name="kill-envoy",
        summary="kill -9 of Envoy",
        run=_kill_among_streams("Envoy"),
        # The server stops too. gRPC cancels calls that arrive while it closes its port, before the server sees them.
        tolerates=SERVER_GONE | {"grpc:CANCELLED"},
    ),
    ProcessAttack(
        name="kill-front-end",
        summary="kill -9 of the front end",
        run=_kill_among_streams(FRONT_END),
        tolerates=SERVER_GONE,
    ),
    ProcessAttack(name="stop-engine", summary="SIGSTOP of the engine for 1 to 4 seconds", run=_stop("engine", 4)),
    ProcessAttack(name="stop-worker", summary="SIGSTOP of a media worker for 1 to 3 seconds", run=_stop(_WORKERS, 3)),
    ProcessAttack(
        name=STOPPED_FRONT_END,
        summary="SIGSTOP of the front end for 1 to 3 seconds",
        run=_stop(FRONT_END, 3),
        tolerates=frozenset({NOT_SERVING}),
        weight=0.5,
    ),
]
