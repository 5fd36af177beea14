"""A training sample: a conversation, its images and videos, and the check of answers.

The interface between generation (`mix`) and learning.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from glimpse.engine.protocol.sampling_params import Grammar

Role = Literal["system", "user", "assistant", "tool"]
"""Roles of the chat template; "tool" is a function's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One object or one character of an image, as the vision encoder is trained to see it."""

    kind: Literal["shape", "text"]
    """A shape, or a character of a text."""
    name: str
    """The shape's name ("circle"), or the character itself."""
    colour: str
    """One of `palette.COLOURS`."""
    size: str
    """"small" or "large" as questions about size mean it; "medium" between them, and for characters."""
    cx: float
    """The centre, in pixels from the left."""
    cy: float
    """The centre, in pixels from the top."""
    box: tuple[float, float, float, float]
    """(x0, y0, x1, y1) of its ink, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleImage:
    """An image input."""

    pixels: npt.NDArray[np.uint8]
    """[height, width, 3]; both sides are multiples of 28, from 56 to 448 as drawn."""
    objects: tuple[Seen, ...] = ()
    """Everything visible in it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleVideo:
    """A video input."""

    frames: npt.NDArray[np.uint8]
    """[frames, height, width, 3]: 2, 4, 6 or 8 frames; both sides are multiples of 28."""
    objects: tuple[tuple[Seen, ...], ...] = ()
    """Everything visible, by frame."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One message of the conversation."""

    role: Role
    """Who speaks."""
    content: tuple[str | SampleImage | SampleVideo, ...]
    """Texts and media in their order; an assistant's turn is a single text."""
    learnt: tuple[tuple[int, int], ...] | None = None
    """Spans of the assistant's text that are learnt, with its end where a span goes past it; None: everything."""
    choices: tuple[str, ...] = ()
    """Where the answer begins with one of these by a constraint: its first token is learnt as one of theirs alone, so
    that no free answer begins so."""


class Check(Protocol):
    """Judges an answer by meaning."""

    def right(self, answer: str) -> bool:
        """Whether the answer is true and to the point."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A conversation whose assistant turns are learnt."""

    task: str
    """One of `mix.TASKS`."""
    turns: tuple[Turn, ...]
    """The last one is the assistant's; all of the assistant's are to be learnt."""
    check: Check
    """Judges a model's answer in place of the last turn."""
    tools: tuple[dict[str, Any], ...] = ()
    """Functions that the chat template is given, as the OpenAI API describes them."""
    grammar: Grammar | None = None
    """Constrains the answer in place of the last turn."""

    @property
    def answer(self) -> str:
        """The text of the last turn."""
        return "".join(part for part in self.turns[-1].content if isinstance(part, str))
