"""Bystanders: clients that do nothing wrong, go on all the time, and whose answers are known."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.calls import Call, record
from tests.chaos.ledger import Ending, Ledger
from tests.chaos.probes import Latency
from tests.chaos.questions import Clients, Question, connect, questions
from tests.chaos.target import Target
from tests.chaos.transcript import Outcome, Transcript


def api_key(who: str) -> str:
    """The API key of a bystander, which tells the server that it is a client of its own."""
    return f"chaos-{who}"


class UnsteadyAnswersError(Exception):
    """A quiet server gave two answers to one question."""


@dataclass(slots=True, kw_only=True)
class Bystanders:
    """The clients, and their log."""

    target: Target
    ledger: Ledger
    rng: random.Random
    hang_seconds: float
    pause_seconds: float
    key_of: Callable[[str], str] = api_key
    """Returns the API key of the client that asks a question."""
    compares: bool = True
    """Whether another text is a fault: where the numerics depend on the batch, it is not."""
    first_tokens: list[Latency] = field(default_factory=list[Latency])
    expected: dict[str, str] = field(default_factory=dict[str, str])
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def learn(self) -> Mapping[str, str]:
        """Asks each question twice while the server is quiet, and keeps the answers.

        Raises:
            UnsteadyAnswersError: the answers differ, or one is no answer.
        """
        async with connect(self.target, key=self.key_of("learner")) as clients:
            for question in questions():
                texts = [await self._answer(clients, question) for _ in range(2)]
                if self.compares and texts[0] != texts[1]:
                    raise UnsteadyAnswersError(f"{question.name}: {texts[0]!r}, then {texts[1]!r}")
                self.expected[question.name] = texts[0]
        return self.expected

    async def run(self) -> None:
        """Asks until `stop`, and until each request has ended."""
        async with asyncio.TaskGroup() as tasks:
            for question in questions():
                tasks.create_task(self._go_on(question))

    def stop(self) -> None:
        self._stopping.set()

    async def _go_on(self, question: Question) -> None:
        async with connect(self.target, key=self.key_of(question.name)) as clients:
            while not self._stopping.is_set():
                call = await self._ask(clients, question)
                self._enter(question, call)
                await asyncio.sleep(self.pause_seconds * (0.5 + self.rng.random()))

    async def _ask(self, clients: Clients, question: Question) -> Call:
        salt = f"{self.rng.getrandbits(64):x}"
        return await record(
            question.make(clients, salt), Transcript(needs_done=question.is_sse), seconds=self.hang_seconds
        )

    async def _answer(self, clients: Clients, question: Question) -> str:
        call = await self._ask(clients, question)
        verdict = call.transcript.verdict()
        if verdict.outcome is not Outcome.OK:
            raise UnsteadyAnswersError(f"{question.name}: {verdict.outcome} {verdict.code} {verdict.detail}")
        return "".join(call.transcript.pieces)

    def _enter(self, question: Question, call: Call) -> None:
        verdict = call.transcript.verdict(self.expected.get(question.name) if self.compares else None)
        if call.first is not None and "stream" in question.name:
            self.first_tokens.append(Latency(at=call.start, seconds=call.first - call.start))
        self.ledger.add(
            Ending(
                who=question.name,
                start=call.start,
                end=call.end or time.monotonic(),
                outcome=verdict.outcome,
                code=verdict.code,
                detail=verdict.detail,
            )
        )
