"""The tokens of a medium in a prompt: runs of placeholder tokens, and literal tokens around and between them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.media.kind import MediaKind

Piece: TypeAlias = tuple[int, ...] | int
"""Ids of literal tokens, or the length of a run of placeholder tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutContext:
    """What a family needs to lay out media, besides the medium."""

    model: ModelConfig
    encode: Callable[[str], list[int]]
    """Returns the token ids of a text, in which special tokens are recognized."""
    index: int = 0
    """Position of the medium among those of its kind in the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """What stands in a prompt for one medium, in place of the one placeholder token of the rendered text."""

    kind: MediaKind
    pieces: tuple[Piece, ...]
    """In the order of the prompt, at least one run among them. The rows of the encoder output fill the runs in order.
    Each run has at least one token."""
    prefix: tuple[int, ...] = ()
    """Tokens before the placeholder in the rendered text that the layout replaces too, where they stand there."""
    suffix: tuple[int, ...] = ()
    """Tokens of the prompt after the placeholder. The layout replaces prefix and suffix together or not at all."""
    leading: str = ""
    """Text before the pieces. It is encoded with the text before the placeholder, with which its beginning may share a
    token, and is not a part of the layout's tokens."""
    trailing: str = ""
    """Text after the pieces, likewise."""
    mrope_time_interval: float = 1.0
    """See `MediaSpan`."""

    @property
    def num_tokens(self) -> int:
        """All tokens, literal ones included."""
        return sum(map(_length, self.pieces))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(offset from the layout's first token, length) of each run."""
        offsets = accumulate(map(_length, self.pieces), initial=0)
        return tuple(
            (offset, piece) for offset, piece in zip(offsets, self.pieces, strict=False) if isinstance(piece, int)
        )

    def token_ids(self, placeholder_id: int) -> list[int]:
        """Returns the token ids of the layout, with this token in the runs."""
        token_ids: list[int] = []
        for piece in self.pieces:
            token_ids += [placeholder_id] * piece if isinstance(piece, int) else piece
        return token_ids


def around_runs(literals: Iterable[Iterable[int]], num_tokens: int) -> tuple[Piece, ...]:
    """Returns pieces that have a run of so many placeholder tokens between each literal and the next."""
    first, *others = map(tuple, literals)
    return (first, *(piece for literal in others for piece in (num_tokens, literal)))


def marked_runs(
    start: Iterable[int], end: Iterable[int], texts: Iterable[Iterable[int]], num_tokens: int
) -> tuple[Piece, ...]:
    """Returns pieces that have runs between two marks, and these texts between each run and the next."""
    start, end = tuple(start), tuple(end)
    return around_runs([start, *((*end, *text, *start) for text in texts), end], num_tokens)


def one_run(kind: MediaKind, num_tokens: int, *, mrope_time_interval: float = 1.0) -> TokenLayout:
    """Returns the layout of a medium that has nothing but placeholder tokens."""
    return TokenLayout(kind=kind, pieces=(num_tokens,), mrope_time_interval=mrope_time_interval)


def _length(piece: Piece) -> int:
    return piece if isinstance(piece, int) else len(piece)
