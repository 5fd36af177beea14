"""Sessions of questions, drawn from a seed. No two begin alike, so nothing is cached by chance.

`Prompts` converts a number of tokens to a number of words, as calibrated on the server.
"""

import io
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PIL import Image

from bench.serving.words import common_text

_SHORT_WORDS = 12
"""Output tokens of a question about an image."""
_TILES = 14
"""Tiles along an image's side; each has a colour of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of a session."""

    label: str
    """Latencies are reported per label."""
    text: str
    image: bytes | None = None
    follows: bool = False
    """Sent with the questions and answers before it."""


Session = tuple[Question, ...]
"""Questions sent one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How the server under test counts prompt tokens."""

    overhead_tokens: float
    """Tokens of a prompt without words."""
    tokens_per_word: float

    def num_words(self, num_tokens: int) -> int:
        """Returns the number of words for a prompt of this many tokens, at least one."""
        return max(1, round((num_tokens - self.overhead_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of questions."""

    prompt_tokens: int
    """Tokens of a text, including the template's, excluding an image's."""
    side: int
    """Side of an image, in pixels."""
    num_turns: int
    """Turns of a conversation."""


MakeSession = Callable[[random.Random, Prompts, Sizes], Session]


def text_session(draw: random.Random, prompts: Prompts, sizes: Sizes) -> Session:
    """A text of `prompt_tokens` tokens."""
    return (Question(label="text", text=common_text(draw, prompts.num_words(sizes.prompt_tokens))),)


def image_session(draw: random.Random, _prompts: Prompts, sizes: Sizes) -> Session:
    """A short question about a new image."""
    return (Question(label="image", text=common_text(draw, _SHORT_WORDS), image=image(draw, sizes.side)),)


def prefix_session(draw: random.Random, prompts: Prompts, sizes: Sizes) -> Session:
    """An image and a long text; the same with another question at its end; the first again."""
    shared = common_text(draw, prompts.num_words(sizes.prompt_tokens - _SHORT_WORDS))
    shown = image(draw, sizes.side)
    first, other = (f"{shared} {common_text(draw, _SHORT_WORDS)}" for _ in range(2))
    return (
        Question(label="cold", text=first, image=shown),
        Question(label="other question", text=other, image=shown),
        Question(label="cached", text=first, image=shown),
    )


def chat_session(draw: random.Random, _prompts: Prompts, sizes: Sizes) -> Session:
    """A conversation about an image."""
    first = Question(label="first turn", text=common_text(draw, _SHORT_WORDS), image=image(draw, sizes.side))
    later = (
        Question(label="later turns", text=common_text(draw, _SHORT_WORDS), follows=True)
        for _ in range(sizes.num_turns - 1)
    )
    return (first, *later)


WORKLOADS: Mapping[str, MakeSession] = {
    "text": text_session,
    "image": image_session,
    "prefix": prefix_session,
    "chat": chat_session,
}


def image(draw: random.Random, side: int) -> bytes:
    """Returns a square JPEG of blurred coloured tiles."""
    tiles = Image.frombytes("RGB", (_TILES, _TILES), draw.randbytes(3 * _TILES**2))
    file = io.BytesIO()
    tiles.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def poisson_arrivals(draw: random.Random, *, per_second: float, count: int) -> list[float]:
    """Returns arrival times of a Poisson process, in seconds."""
    now = 0.0
    arrivals: list[float] = []
    for _ in range(count):
        now += draw.expovariate(per_second)
        arrivals.append(now)
    return arrivals
