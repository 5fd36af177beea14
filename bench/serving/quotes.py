"""Quotes against what requests then cost: cached tokens, and the time to the first token, idle and beside streams.

Against a running server: python -m bench.serving.quotes [--target 127.0.0.1:50051] [--rounds 40] [--streams 8]

Each round quotes a prompt of random length, half of them with an image and a third of them sent before, and sends it.
It prints the times quoted and measured, as medians, the share of the times that are within a factor of 1.5, and in how
many rounds the cached tokens were those of the usage.
"""

import argparse
import asyncio
import io
import random
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image as PillowImage

from bench.figures import table
from bench.serving.words import common_text
from glimpse.client import AsyncClient, Image

_FACTOR = 1.5
_WARM_UP = 20
"""Requests before the first quote, from which the server learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A request that was quoted, then made."""

    quoted_seconds: float
    seconds: float
    has_cached_tokens: bool
    """The tokens from the prefix cache are those of the quote."""

    @property
    def is_within(self) -> bool:
        return 1 / _FACTOR <= self.seconds / self.quoted_seconds <= _FACTOR


async def ask(client: AsyncClient, prompt: Any, max_tokens: int) -> tuple[float, int]:
    """Returns the seconds to the first token, and the tokens from the prefix cache."""
    began, first, cached = time.perf_counter(), None, 0
    async for chunk in client.stream(prompt, max_completion_tokens=max_tokens, ignore_eos=True):
        if first is None:
            first = time.perf_counter() - began
        if chunk.usage is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
    assert first is not None
    return first, cached


async def quote_and_ask(client: AsyncClient, prompt: Any) -> Round | None:
    """Returns None where the server has no time to quote."""
    counted = await client.count_tokens(prompt, quote=True)
    seconds, cached = await ask(client, prompt, 4)
    if not counted.quote.HasField("first_token_milliseconds"):
        return None
    return Round(
        quoted_seconds=counted.quote.first_token_milliseconds / 1000,
        seconds=seconds,
        has_cached_tokens=cached == counted.prompt_tokens_details.cached_tokens,
    )


def make_prompt(draw: random.Random, most_words: int) -> list[Any]:
    text = common_text(draw, draw.randint(10, most_words))
    return [noise(draw), text] if draw.random() < 0.5 else [text]


def noise(draw: random.Random) -> Image:
    file, side = io.BytesIO(), draw.randint(100, 600)
    PillowImage.frombytes("RGB", (side, side), draw.randbytes(3 * side**2)).save(file, "PNG")
    return Image(file.getvalue())


async def stream_forever(client: AsyncClient, draw: random.Random, most_words: int) -> None:
    while True:
        await ask(client, make_prompt(draw, most_words), draw.randint(20, 200))


async def measure(client: AsyncClient, draw: random.Random, rounds: int, most_words: int) -> list[Round]:
    """Quotes and asks one request after the other."""
    prompts: list[Any] = []
    measured: list[Round] = []
    for _ in range(rounds):
        prompts.append(draw.choice(prompts) if prompts and draw.random() < 1 / 3 else make_prompt(draw, most_words))
        made = await quote_and_ask(client, prompts[-1])
        measured += [] if made is None else [made]
    return measured


async def run(arguments: argparse.Namespace) -> str:
    """Returns the table."""
    draw, rows = random.Random(arguments.seed), list[list[str]]()
    async with AsyncClient(arguments.target) as client:
        for _ in range(_WARM_UP):
            await ask(client, make_prompt(draw, arguments.words), 4)
        for num_streams in (0, arguments.streams):
            others = [
                asyncio.create_task(stream_forever(client, random.Random(index), arguments.words))
                for index in range(num_streams)
            ]
            if others:
                await asyncio.sleep(arguments.settle)
            rounds = await measure(client, draw, arguments.rounds, arguments.words)
            for task in others:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            rows.append(row(f"{num_streams} streams" if num_streams else "idle", rounds))
    head = ["load", "rounds", "quoted ms", "measured ms", "measured / quoted", "within 1.5", "cached tokens as quoted"]
    return table(head, rows)


def row(load: str, rounds: list[Round]) -> list[str]:
    ratios = sorted(each.seconds / each.quoted_seconds for each in rounds)
    quoted, measured = (
        f"{1000 * statistics.median(values):.0f}"
        for values in ([each.quoted_seconds for each in rounds], [each.seconds for each in rounds])
    )
    spread = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f} to {ratios[-1]:.2f}]"
    within, cached = (sum(values) for values in zip(*((x.is_within, x.has_cached_tokens) for x in rounds), strict=True))
    return [
        load,
        str(len(rounds)),
        quoted,
        measured,
        spread,
        f"{100 * within / len(rounds):.0f} %",
        f"{cached} of {len(rounds)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:50051", help="the server's gRPC address")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--streams", type=int, default=8, help="streams beside it in the second half")
    parser.add_argument("--words", type=int, default=1000, help="most words of a prompt")
    parser.add_argument(
        "--settle", type=float, default=5.0, help="seconds between the first streams and the first quote"
    )
    parser.add_argument("--seed", type=int, default=0)
    print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
