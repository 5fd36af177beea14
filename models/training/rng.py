"""Randomness of samples, and templates with alternatives."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_ALTERNATIVES = re.compile(r"\(([^()]*\|[^()]*)\)")

_LOOSE_MARK = re.compile(r" ([?.!])")
"""Left where an alternative was empty."""

_SPELLINGS = (("colour", "color"), ("Colour", "Color"), ("grey", "gray"), ("centre", "center"))
"""British, as answers are, and American."""

_POLITE = ("Please tell me: ", "Can you tell me: ", "Hi! ", "Hello. ", "Look at this. ", "Question: ", "Hey, ", "OK, ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """Templates of one utterance; `(a|b|)` is any of its alternatives, `{name}` a word of the sample."""

    learnt: tuple[str, ...]
    """For training."""
    held_out: tuple[str, ...]
    """For evaluation only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRng:
    """The random source and options of a sample."""

    source: random.Random
    """All randomness comes from it."""
    held_out: bool = False
    """Use templates, words and looks that training does not use."""
    largest_side: int = 448
    """Largest side of an image, in pixels."""
    most_questions: int = 1
    """Most questions about one image in single-question tasks: more teach more at little cost."""

    def chance(self, probability: float) -> bool:
        """Returns True with this probability."""
        return self.source.random() < probability

    def between(self, low: float, high: float) -> float:
        """Draws uniformly from the range."""
        return self.source.uniform(low, high)

    def one(self, things: Sequence[T]) -> T:
        """One of them."""
        return self.source.choice(things)

    def some(self, things: Sequence[T], number: int) -> list[T]:
        """Draws `number` different ones, in random order."""
        return self.source.sample(things, number)

    def weighted(self, weights: dict[T, float]) -> T:
        """Draws a key by weight."""
        return self.source.choices(list(weights), list(weights.values()))[0]

    def until(self, draw: Callable[[], T | None]) -> T:
        """Draws until the result is not None."""
        while (found := draw()) is None:
            pass
        return found

    def say(self, templates: Templates, **words: object) -> str:
        """Fills in one of the templates."""
        template = self.one(templates.held_out if self.held_out else templates.learnt)
        return self._expand(template).format(**words)

    def ask(self, templates: Templates, **words: object) -> str:
        """Fills in one of the templates as people type: US spelling, lower case, no question mark, polite words."""
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
