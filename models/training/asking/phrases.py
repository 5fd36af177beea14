"""How answers say things: one form for each kind of answer, so that it is quickly learnt. Knows no pictures."""

from collections.abc import Sequence

from models.training.drawing.scene import Thing

PLURALS = {"cross": "crosses"}


def with_article(words: str) -> str:
    """ "red circle" → "a red circle"."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(noun: str) -> str:
    """ "red star" → "red stars"."""
    *before, last = noun.split(" ")
    return " ".join([*before, PLURALS.get(last, f"{last}s")])


def described(thing: Thing) -> str:
    """ "a large red circle at the top left"."""
    return f"{with_article(f'{thing.size} {thing.colour} {thing.shape}')} {thing.place}"


def named(thing: Thing) -> str:
    """ "red circle"."""
    return f"{thing.colour} {thing.shape}"


def listed(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def description(things: Sequence[Thing]) -> str:
    """The whole picture in one sentence."""
    return sentence(listed([described(thing) for thing in things])) if things else "There is nothing in the picture."


def counted(number: int, noun: str) -> str:
    """ "There are 3 triangles."."""
    match number:
        case 0:
            return f"There are no {plural(noun)}."
        case 1:
            return f"There is 1 {noun}."
        case _:
            return f"There are {number} {plural(noun)}."
