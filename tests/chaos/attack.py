"""What an attack is, and what it works with."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tests.chaos.calls import Call, Send, record
from tests.chaos.endpoints import CHAT, FORMS
from tests.chaos.ledger import ANY_REASON, BROKEN, Ending
from tests.chaos.probes import NOT_SERVING
from tests.chaos.stack import Stack
from tests.chaos.target import Target
from tests.chaos.transcript import Outcome, Transcript

DISCONNECTS = "disconnects"
"""The count of requests whose client left before their end."""
OVERLOAD = frozenset({"overloaded"})
ENGINE_GONE = frozenset({"engine_unavailable", "engine_died", "model_loading", NOT_SERVING})
_ANY_REASON = frozenset({ANY_REASON})
SERVER_GONE = ENGINE_GONE | {BROKEN, "unavailable", "grpc:UNAVAILABLE"}


@dataclass(slots=True, kw_only=True)
class Arena:
    """What an attack works with, and its log."""

    attack: str
    target: Target
    rng: random.Random
    scale: float = 1.0
    """Factor of all counts."""
    hang_seconds: float = 60.0
    compares: bool = True
    """Whether another text is a fault."""
    endings: list[Ending] = field(default_factory=list[Ending])
    counts: Counter[str] = field(default_factory=Counter[str])
    """What was done, and what came of it, for the report."""

    def times(self, count: int) -> int:
        """A count, scaled."""
        return max(1, round(count * self.scale))

    def anywhere(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """Chooses the endpoint of a chat completion at random; returns its body there, and the path."""
        path = self.path()
        form = FORMS[path](body)
        path = CHAT if form is None else path
        self.counts[path] += 1
        return form or body, path

    def path(self) -> str:
        """Chooses one of the endpoints at random."""
        return self.rng.choice([*FORMS])

    async def ask(
        self,
        send: Send,
        *,
        is_sse: bool = False,
        num_choices: int = 1,
        tolerates: frozenset[str] = _ANY_REASON,
        expected: str | None = None,
    ) -> Call:
        """Sends a request of the attack's own, which must have an ending too, perhaps an error that it tolerates.

        Another text than the `expected` one is a fault.
        """
        transcript = Transcript(needs_done=is_sse, num_choices=num_choices)
        call = await record(send, transcript, seconds=self.hang_seconds)
        verdict = transcript.verdict(expected)
        self.counts[DISCONNECTS if verdict.outcome is Outcome.LEFT else verdict.code or verdict.outcome.value] += 1
        self.endings.append(
            Ending(
                who=f"attack {self.attack}",
                start=call.start,
                end=call.end or time.monotonic(),
                outcome=verdict.outcome,
                code=verdict.code,
                detail=verdict.detail,
                tolerates=tolerates,
            )
        )
        return call

    async def ask_all(
        self, sends: Iterable[Send], *, is_sse: bool = False, tolerates: frozenset[str] = _ANY_REASON
    ) -> None:
        """Sends all at once."""
        await asyncio.gather(*(self.ask(send, is_sse=is_sse, tolerates=tolerates) for send in sends))


@dataclass(slots=True, kw_only=True)
class Inside(Arena):
    """What an attack on processes works with."""

    stack: Stack
    serve_args: Sequence[str]
    """Flags of the servers that the attack starts itself."""
    recoveries: list[float] = field(default_factory=list[float])
    """Seconds from each kill to the first right answer."""


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, object]) -> AsyncGenerator[None]:
    """Runs something while the block runs, and to its end; it is canceled if the block fails."""
    task = asyncio.create_task(work)
    try:
        yield
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


A = TypeVar("A", bound=Arena)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnyAttack(Generic[A]):
    name: str
    summary: str
    """What it does, for --list."""
    run: Callable[[A], Coroutine[Any, Any, None]]
    weight: float = 1.0
    """How often it is drawn, relative to others."""
    tolerates: frozenset[str] = frozenset()
    """The codes of errors that bystanders may get meanwhile; nothing else may happen to them."""
    seconds: float = 60.0
    """The longest that it may take, in addition to the time after which a request counts as hung."""


class ClientAttack(_AnyAttack[Arena]):
    """What a client does. It runs in a process of its own, so that its work does not disturb what is measured."""


class ProcessAttack(_AnyAttack[Inside]):
    """What happens to the server's processes."""
