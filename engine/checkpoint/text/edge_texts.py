"""Writes the texts at the edges of media into a rendered prompt, so that they are encoded with the text around them."""

import re
from collections.abc import Callable, Mapping, Sequence

from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.media.kind import MediaKind


def with_edge_texts(
    rendered: str,
    media: Sequence[TokenLayout],
    placeholders: Mapping[MediaKind, str],
    spell: Callable[[Sequence[int]], str],
) -> str:
    """Returns the rendered text with `leading` and `trailing` of each layout around its placeholder and wrapper.

    Args:
        rendered: the text of a prompt. Placeholders without a medium stay as they are.
        media: the layouts of the prompt's media, in the order of each kind's placeholders.
        spell: returns the text of tokens.
    """
    if not any(layout.leading or layout.trailing for layout in media):
        return rendered
    waiting = {spelling: [layout for layout in media if layout.kind is kind] for kind, spelling in placeholders.items()}
    pieces: list[str] = []
    end = 0
    for found in re.finditer("|".join(map(re.escape, waiting)), rendered):
        if not waiting[found.group()]:
            continue
        layout = waiting[found.group()].pop(0)
        start, stop = _with_wrapper(rendered, found.span(), spell(layout.prefix), spell(layout.suffix))
        pieces += [rendered[end:start], layout.leading, rendered[start:stop], layout.trailing]
        end = stop
    return "".join([*pieces, rendered[end:]])


def _with_wrapper(text: str, span: tuple[int, int], prefix: str, suffix: str) -> tuple[int, int]:
    """Returns the span of a placeholder and of the wrapper around it, if it is there."""
    start, stop = span
    if text.endswith(prefix, 0, start) and text.startswith(suffix, stop):
        return start - len(prefix), stop + len(suffix)
    return span
