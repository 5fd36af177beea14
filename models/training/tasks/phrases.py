"""How answers say things: one form for each kind of answer, so that it is quickly learnt. Knows no images."""

from collections.abc import Sequence

from models.training.drawing.scene import Thing

PLURALS = {"cross": "crosses"}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


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


def placed(thing: Thing) -> str:
    """ "a red circle at the top left"."""
    return f"{with_article(named(thing))} {thing.place}"


def concluded(said: str, *, yes: bool) -> str:
    """ "The ring is purple, so no.": what is seen comes first, as yes and no follow from it."""
    return sentence(f"{said}, so {'yes' if yes else 'no'}")


def listed(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def description(things: Sequence[Thing]) -> str:
    """The whole image in one sentence."""
    return sentence(listed([described(thing) for thing in things])) if things else "There is nothing in the picture."


def counted(things: Sequence[Thing], noun: str) -> str:
    """ "The first is a red star on the left and the second a blue star in the centre: 2 stars."

    The number comes last, as who counts must look at each first: said at once, it is often wrong.
    """
    match things:
        case []:
            return f"There are no {plural(noun)}."
        case [_]:
            return f"There is 1 {noun}."
        case _:
            each = [
                f"the {nth} {'is ' if nth == ORDINALS[0] else ''}{placed(thing)}"
                for nth, thing in zip(ORDINALS, things, strict=False)
            ]
            return sentence(f"{listed(each)}: {len(things)} {plural(noun)}")
