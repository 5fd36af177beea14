"""Cuts a text at its first stop string, as a reference."""


def cut_at_first_stop(text: str, stops: list[str], *, include: bool = False) -> str:
    """Searches every prefix of the text, shortest first. `include`: the stop string remains."""
    for end in range(1, len(text) + 1):
        sizes = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if sizes:
            return text[:end] if include else text[: end - max(sizes)]
    return text
