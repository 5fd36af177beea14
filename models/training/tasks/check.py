"""Judges of answers: each holds what must be true of the answer's meaning and cares nothing for its wording."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from models.training.drawing.palette import COLOURS
from models.training.drawing.scene import Thing
from models.training.drawing.shapes import SHAPES
from models.training.sample import Check

SIZES = ("small", "large")
DIRECTIONS = ("left", "right", "up", "down")
ORDINALS = ("first", "second")
PLACE_WORDS = ("top", "bottom", "left", "right", "centre")
VOCABULARIES = {
    "colour": COLOURS,
    "shape": SHAPES,
    "size": SIZES,
    "direction": DIRECTIONS,
    "picture": ORDINALS,
}
"""Kinds of words of which one is the answer and all others are wrong."""

_SYNONYMS = {
    "gray": "grey", "center": "centre", "middle": "centre", "central": "centre", "upper": "top", "lower": "bottom",
    "big": "large", "little": "small", "tiny": "small", "larger": "large", "bigger": "large", "smaller": "small",
    "upwards": "up", "downwards": "down", "leftwards": "left", "rightwards": "right", "donut": "ring",
    "1st": "first", "2nd": "second", "plus": "cross", "rhombus": "diamond",
}  # fmt: skip
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NONE = ("no", "not", "none", "nothing", "neither", "isn't", "aren't", "doesn't", "without")


@dataclass(frozen=True, slots=True)
class Names:
    """The words of one kind that the answer names, in their order, are these."""

    kind: str
    """A key of VOCABULARIES."""
    words: tuple[str, ...]
    """Without repetitions."""
    ordered: bool = True
    """Whether their order is part of the meaning."""

    def right(self, answer: str) -> bool:
        """Whether it names them and no others."""
        found = list(dict.fromkeys(word for word in words_of(answer) if word in VOCABULARIES[self.kind]))
        return found == list(self.words) if self.ordered else set(found) == set(self.words)


@dataclass(frozen=True, slots=True)
class Mentions:
    """All these words occur, and none of those."""

    needed: tuple[str, ...] = ()
    """Each may be several alternatives with bars between them."""
    refused: tuple[str, ...] = ()
    """Words that make it wrong."""

    def right(self, answer: str) -> bool:
        """Whether it has what it must have."""
        text = f" {' '.join(words_of(answer))} "
        needed = all(any(f" {word} " in text for word in group.split("|")) for group in self.needed)
        return needed and not any(f" {word} " in text for word in self.refused)


@dataclass(frozen=True, slots=True)
class Counts:
    """The answer's only number is this one."""

    number: int

    def right(self, answer: str) -> bool:
        """Whether it says this number, in digits or as a word; "no" and "none" are zero."""
        words = words_of(answer)
        numbers = [int(word) for word in words if word.isdecimal()]
        numbers += [_NUMBERS.index(word) for word in words if word in _NUMBERS]
        if not numbers and any(word in _NONE for word in words):
            numbers = [0]
        return set(numbers) == {self.number}


@dataclass(frozen=True, slots=True)
class Agrees:
    """The answer is a yes, or a no."""

    yes: bool

    def right(self, answer: str) -> bool:
        """Whether it says one of the two, the right one."""
        return {word for word in words_of(answer) if word in ("yes", "no")} == {"yes" if self.yes else "no"}


@dataclass(frozen=True, slots=True)
class Denies:
    """The answer says that what was asked about is not there."""

    def right(self, answer: str) -> bool:
        """Whether there is a negation."""
        return any(word in _NONE for word in words_of(answer))


@dataclass(frozen=True, slots=True)
class Locates:
    """The answer names one place of the grid."""

    place: str
    """One of `scene.PLACES`."""

    def right(self, answer: str) -> bool:
        """Whether it is that place."""
        return place_in(answer) == place_in(self.place)


@dataclass(frozen=True, slots=True)
class LocatesEach:
    """The answer names several places of the grid, each in a part of its own."""

    places: tuple[str, ...]
    """Places of `scene.PLACES`, in order."""

    def right(self, answer: str) -> bool:
        """Whether they are those places."""
        found = (place_in(part) for part in re.split(r"\band\b|\bbut\b|[,;.]", answer))
        return [place for place in found if place] == [place_in(place) for place in self.places]


@dataclass(frozen=True, slots=True)
class Describes:
    """The answer tells of these things and no others, each with all that it is."""

    things: tuple[tuple[str, str, str, frozenset[str]], ...]
    """(size, colour, shape, place) of each; see `describes`."""

    def right(self, answer: str) -> bool:
        """Whether every thing is right, in any order."""
        return Counter(_things_in(answer)) == Counter(self.things)


@dataclass(frozen=True, slots=True)
class Reads:
    """The answer gives a text, without regard to capitals."""

    text: str

    def right(self, answer: str) -> bool:
        """Whether what stands in quotes, or else the last word, is the text."""
        quoted = re.findall(r'"([^"]*)"', answer.replace("“", '"').replace("”", '"'))
        said = quoted or [answer.strip().rstrip(".").split(":")[-1].split(" ")[-1]]
        return [text.strip().casefold() for text in said] == [self.text.casefold()]


@dataclass(frozen=True, slots=True)
class IsJson:
    """The answer is a JSON value and nothing else, but for a fence of backticks."""

    document: str
    """The value, as JSON."""

    def right(self, answer: str) -> bool:
        """Whether the values are equal, without regard to the order of an object's members."""
        text = re.sub(r"^```(?:json)?\s*|\s*```$", "", answer.strip())
        return _parsed(text) == json.loads(self.document)


@dataclass(frozen=True, slots=True)
class Says:
    """The answer is this text and nothing else."""

    text: str

    def right(self, answer: str) -> bool:
        """Whether the texts are equal."""
        return answer == self.text


@dataclass(frozen=True, slots=True)
class Calls:
    """The answer calls one function."""

    name: str
    """Name of the function."""
    arguments: str
    """Arguments as JSON."""

    def right(self, answer: str) -> bool:
        """Whether it is exactly one well-formed call with these arguments."""
        calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", answer, re.DOTALL)
        expected = {"name": self.name, "arguments": json.loads(self.arguments)}
        return [_parsed(call) for call in calls] == [expected]


@dataclass(frozen=True, slots=True)
class All:
    """Several things must be true of it."""

    checks: tuple[Check, ...]

    def right(self, answer: str) -> bool:
        """Whether all are."""
        return all(check.right(answer) for check in self.checks)


@dataclass(frozen=True, slots=True)
class Concludes:
    """The answer's last sentence is what matters; those before it tell what it follows from."""

    check: Check
    """Check of the last sentence."""

    def right(self, answer: str) -> bool:
        """Whether that is right."""
        return self.check.right(re.split(r"(?<=[.!?])\s+", answer.strip())[-1])


def describes(things: Sequence[Thing]) -> Check:
    """The judge of a description of these things."""
    if not things:
        return Denies()
    return Describes(tuple((thing.size, thing.colour, thing.shape, place_in(thing.place)) for thing in things))


def words_of(answer: str) -> list[str]:
    """Returns an answer's words in lower case and one spelling, synonyms made one, plurals of shapes made singular."""
    words: list[str] = re.findall(r"[a-z0-9']+", answer.casefold().replace("’", "'"))
    return [_one_form(_SYNONYMS.get(word, word)) for word in words]


def place_in(text: str) -> frozenset[str]:
    """The place that a text names; "centre left" is "left"."""
    found = frozenset(word for word in words_of(text) if word in PLACE_WORDS)
    return found - {"centre"} if len(found) > 1 else found


def _one_form(word: str) -> str:
    for singular in (word.removesuffix("s"), word.removesuffix("es")):
        if singular in SHAPES:
            return singular
    return word


def _things_in(answer: str) -> list[tuple[str, str, str, frozenset[str]]]:
    """What a description tells of: up to two words before a shape are its size and colour, those after it its place."""
    words, found = words_of(answer), list[tuple[str, str, str, frozenset[str]]]()
    ends = [index for index, word in enumerate(words) if word in SHAPES]
    for end, following in pairwise([*ends, len(words)]):
        before = words[max(0, end - 2) : end]
        size = next((word for word in before if word in SIZES), "")
        colour = next((word for word in before if word in COLOURS), "")
        found.append((size, colour, words[end], place_in(" ".join(words[end + 1 : following]))))
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
