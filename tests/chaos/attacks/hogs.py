"""Requests that take as much of the engine as one request may."""

import asyncio

from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.calls import http_session, rest_stream, rest_unary
from tests.chaos.questions import chat


async def _logprobs(arena: Arena) -> None:
    body = chat("Go on.", n=128, logprobs=True, top_logprobs=20, ignore_eos=True, temperature=1)
    async with http_session(arena.target.url) as session:
        await arena.ask(rest_unary(session, body), num_choices=128)
        await arena.ask(rest_stream(session, body), is_sse=True, num_choices=128)


async def _two_hogs(arena: Arena) -> None:
    """Hogs leave after some seconds; what matters is what others get meanwhile."""
    body = chat("Go on.", n=128, ignore_eos=True, max_completion_tokens=1500, temperature=1)
    async with http_session(arena.target.url) as first, http_session(arena.target.url) as second:
        sends = [rest_stream(session, body, leave_after_seconds=15) for session in (first, second)]
        await asyncio.gather(*(arena.ask(send, is_sse=True, num_choices=128) for send in sends))


async def _urgent(arena: Arena) -> None:
    """A flood that claims to be more urgent than everybody else."""
    body = chat("Go on.", priority=-100, ignore_eos=True, max_completion_tokens=64)
    async with http_session(arena.target.url) as session:
        await arena.ask_all([rest_stream(session, body) for _ in range(arena.times(200))], is_sse=True)


ATTACKS = [
    ClientAttack(name="logprobs", summary="n=128 with top_logprobs=20, twice", run=_logprobs),
    ClientAttack(name="two-hogs", summary="n=128 with ignore_eos from two clients", run=_two_hogs),
    ClientAttack(name="urgent", summary="200 streams of the highest priority", run=_urgent),
]
