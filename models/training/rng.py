"""Chance: the draws that everything in a sample comes from, and how one wording becomes many. Knows no images."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_ALTERNATIVES = re.compile(r"\(([^()]*\|[^()]*)\)")

_LOOSE_MARK = re.compile(r" ([?.!])")
"""What is left where an alternative was empty."""

_SPELLINGS = (("colour", "color"), ("Colour", "Color"), ("grey", "gray"), ("centre", "center"))
"""British, as answers are, and American."""

_POLITE = ("Please tell me: ", "Can you tell me: ", "Hi! ", "Hello. ", "Look at this. ", "Question: ", "Hey, ", "OK, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Ways to say one thing; `(a|b|)` stands for any of its alternatives, `{name}` for a word of the sample."""

    learnt: tuple[str, ...]
    """For training."""
    held_out: tuple[str, ...]
    """Only for judging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRng:
    """What a sample is drawn with."""

    source: random.Random
    """All chance comes from it."""
    held_out: bool = False
    """Whether wordings, words and looks are those that training does not use."""
    largest_side: int = 448
    """Bound of an image's sides, in pixels."""
    most_questions: int = 1
    """Bound of what is asked about one image by tasks of a single question: more teach more at little more cost."""

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.source.random() < probability

    def between(self, low: float, high: float) -> float:
        """A number of the range, all alike."""
        return self.source.uniform(low, high)

    def one(self, things: Sequence[T]) -> T:
        """One of them."""
        return self.source.choice(things)

    def some(self, things: Sequence[T], number: int) -> list[T]:
        """That many different ones, in any order."""
        return self.source.sample(things, number)

    def weighted(self, weights: dict[T, float]) -> T:
        """A key, as often as its weight says."""
        return self.source.choices(list(weights), list(weights.values()))[0]

    def until(self, draw: Callable[[], T | None]) -> T:
        """The first draw that is not None."""
        while (found := draw()) is None:
            pass
        return found

    def say(self, templates: Templates, **words: object) -> str:
        """One of the wordings, with its words, as it stands."""
        template = self.one(templates.held_out if self.held_out else templates.learnt)
        return self._expand(template).format(**words)

    def ask(self, templates: Templates, **words: object) -> str:
        """One of the wordings as people type it: other spellings, no capitals, no question mark, a polite word."""
        text = _LOOSE_MARK.sub(r"\1", " ".join(self.say(templates, **words).split()))
        if self.chance(0.5):
            for british, american in _SPELLINGS:
                text = text.replace(british, american)
        if self.chance(0.08):
            text = self.one(_POLITE) + text
        if self.chance(0.06):
            text = text.rstrip(".") + " please" if text.endswith(".") else text
        return self._typed(text)

    def _typed(self, text: str) -> str:
        if self.chance(0.2):
            text = text.rstrip("?.!")
        if self.chance(0.15):
            return text.lower()
        return text.upper() if self.chance(0.015) else text

    def _expand(self, template: str) -> str:
        while (found := _ALTERNATIVES.search(template)) is not None:
            choice = self.one(found.group(1).split("|"))
            template = template[: found.start()] + choice + template[found.end() :]
        return template
