"""Stop strings of a text, and the text cut at the first of them, as a reference."""

import random


def draw_stops(draw: random.Random, text: str) -> list[str]:
    """Draws up to three stop strings, most of them from the text."""
    starts = [draw.randrange(len(text)) for _ in range(draw.randint(0, 3))] if text else []
    taken = [text[start : start + draw.randint(1, 6)] for start in starts]
    return [stop if draw.random() < 0.6 else stop + draw.choice("x日😀") for stop in taken]


def cut_at_first_stop(text: str, stops: list[str], *, include: bool = False) -> str:
    """Searches every prefix of the text, shortest first. `include`: the stop string remains."""
    for end in range(1, len(text) + 1):
        sizes = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if sizes:
            return text[:end] if include else text[: end - max(sizes)]
    return text
