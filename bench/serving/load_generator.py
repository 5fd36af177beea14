"""Runs sessions against a server, with fixed concurrency or by arrival times, and collects the answers."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.serving.clients import Answer, AskError, Client, Turn
from bench.serving.words import common_text
from bench.serving.workloads import Prompts, Session

OnAnswer = Callable[[], None]
_PROBE_WORDS = (40, 140)


@dataclass(slots=True, kw_only=True)
class Gathered:
    """The results of a run."""

    answers: list[tuple[str, Answer]] = field(default_factory=list[tuple[str, Answer]])
    """Each with its question's label, in order of completion."""
    failures: list[str] = field(default_factory=list[str])
    """Error messages of the others; a session ends with its first failure."""


async def probe(client: Client, draw: random.Random) -> Prompts:
    """Sends two short questions to learn how the server counts tokens. Without usage, counts words."""
    few, many = _PROBE_WORDS
    counts = [await _count(client, common_text(draw, num_words)) for num_words in _PROBE_WORDS]
    if not all(counts):
        return Prompts(overhead_tokens=0, tokens_per_word=1)
    tokens_per_word = (counts[1] - counts[0]) / (many - few)
    return Prompts(overhead_tokens=counts[0] - few * tokens_per_word, tokens_per_word=tokens_per_word)


async def _count(client: Client, text: str) -> int:
    return (await client.ask([Turn(role="user", text=text)], max_tokens=2)).prompt_tokens


async def closed_loop(
    client: Client, sessions: Sequence[Session], *, concurrency: int, max_tokens: int, on_answer: OnAnswer
) -> Gathered:
    """Keeps a fixed number of sessions running."""
    gathered = Gathered()
    waiting = iter(sessions)
    workers = (_work(client, waiting, max_tokens, gathered, on_answer) for _ in range(concurrency))
    await asyncio.gather(*workers)
    return gathered


async def open_loop(
    client: Client, sessions: Sequence[Session], *, arrivals: Sequence[float], max_tokens: int, on_answer: OnAnswer
) -> Gathered:
    """Starts each session at its time, in seconds from now, at any concurrency."""
    gathered = Gathered()

    async def begin(session: Session, arrival: float) -> None:
        await asyncio.sleep(arrival)
        await _ask_all(client, session, max_tokens, gathered, on_answer)

    await asyncio.gather(*(begin(*pair) for pair in zip(sessions, arrivals, strict=True)))
    return gathered


async def _work(
    client: Client, waiting: Iterator[Session], max_tokens: int, gathered: Gathered, on_answer: OnAnswer
) -> None:
    for session in waiting:
        await _ask_all(client, session, max_tokens, gathered, on_answer)


async def _ask_all(client: Client, session: Session, max_tokens: int, gathered: Gathered, on_answer: OnAnswer) -> None:
    turns: tuple[Turn, ...] = ()
    for question in session:
        asked = Turn(role="user", text=question.text, image=question.image)
        turns = (*turns, asked) if question.follows else (asked,)
        try:
            answer = await client.ask(turns, max_tokens=max_tokens)
        except AskError as error:
            gathered.failures.append(str(error))
            return
        gathered.answers.append((question.label, answer))
        on_answer()
        turns = (*turns, Turn(role="assistant", text=answer.text))
