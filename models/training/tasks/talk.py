"""How a question, its media and its answer become a conversation. Knows no tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.training.drawing.scene import Thing
from models.training.rng import SampleRng
from models.training.sample import Check, Sample, SampleImage, SampleVideo, Turn

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "You are a helpful assistant that looks at pictures.",
    "Answer briefly.",
    "Answer in one short sentence.",
    "You are Glimpse.",
    "Be concise.",
    "You are a careful observer. Tell the truth.",
    "You are a vision assistant.",
    "Answer the question about the image.",
    "Be honest and brief.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer."""

    question: str
    """What the user types."""
    answer: str
    """What the model should say."""
    check: Check
    """Judges other answers."""
    about: Thing | None = None
    """The thing that "it" means from now on, if there is one."""


def conversation(
    rng: SampleRng, task: str, media: Sequence[SampleImage | SampleVideo], exchanges: Sequence[Exchange]
) -> Sample:
    """A sample about these media, which the first question brings; the last answer is judged."""
    turns: list[Turn] = []
    if rng.chance(0.1):
        turns.append(Turn(role="system", content=(rng.one(SYSTEM_MESSAGES),)))
    for index, exchange in enumerate(exchanges):
        content = _around(rng, media, exchange.question) if index == 0 else (exchange.question,)
        turns.append(Turn(role="user", content=content))
        turns.append(Turn(role="assistant", content=(exchange.answer,)))
    return Sample(task=task, turns=tuple(turns), check=exchanges[-1].check)


def _around(
    rng: SampleRng, media: Sequence[SampleImage | SampleVideo], question: str
) -> tuple[str | SampleImage | SampleVideo, ...]:
    """Media before the question or after it, as people send them; sometimes on lines of their own."""
    if rng.chance(0.6):
        return (*media, f"\n{question}" if media and rng.chance(0.1) else question)
    return (question, *media)
