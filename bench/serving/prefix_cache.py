"""Time to first token of a long prompt with an image, cold and cached.

Against a running server: python bench/serving/prefix_cache.py [--url http://127.0.0.1:8080/v1] [--rounds 7] [--words
1500]

Each round sends a new prompt with a new image twice. It prints both times to first token, their ratio, the tokens from
the prefix cache, and whether the two answers are equal.
"""

import argparse
import base64
import io
import random
import statistics
import time
from dataclasses import dataclass

from openai import OpenAI
from PIL import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer."""

    first_token_seconds: float
    text: str
    prompt_tokens: int
    cached_tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1", help="an OpenAI base URL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--words", type=int, default=1500, help="length of the prompt's text")
    parser.add_argument("--side", type=int, default=336, help="the image's width and height in pixels")
    arguments = parser.parse_args()
    client = OpenAI(base_url=arguments.url, api_key="none")
    model = client.models.list().data[0].id
    draw = random.Random()
    ask(client, model, "Warm up.", image(draw, arguments.side))
    ratios: list[float] = []
    print(f"{'cold s':>8} {'warm s':>8} {'ratio':>6} {'prompt':>7} {'cached':>7}  same text")
    for _ in range(arguments.rounds):
        text, url = prompt(draw, arguments.words), image(draw, arguments.side)
        cold = ask(client, model, text, url)
        warm = ask(client, model, text, url)
        ratios.append(cold.first_token_seconds / warm.first_token_seconds)
        print(
            f"{cold.first_token_seconds:8.3f} {warm.first_token_seconds:8.3f} {ratios[-1]:6.1f} "
            f"{warm.prompt_tokens:7} {warm.cached_tokens:7}  {cold.text == warm.text}"
        )
    print(f"median ratio {statistics.median(ratios):.1f} [{min(ratios):.1f} .. {max(ratios):.1f}]")


def prompt(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(("red", "circle", "left", "of", "the", "blue", "square", "and")) for _ in range(words))


def image(draw: random.Random, side: int) -> str:
    """Returns the data URL of a PNG of coloured tiles."""
    tiles = Image.frombytes("RGB", (8, 8), draw.randbytes(192)).resize((side, side), Image.Resampling.NEAREST)
    file = io.BytesIO()
    tiles.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def ask(client: OpenAI, model: str, text: str, url: str) -> Answer:
    begun = time.perf_counter()
    stream = client.chat.completions.create(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
            }
        ],
        temperature=0,
        max_completion_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    first_token_seconds = 0.0
    pieces: list[str] = []
    usage = None
    for chunk in stream:
        first_token_seconds = first_token_seconds or time.perf_counter() - begun
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return Answer(
        first_token_seconds=first_token_seconds,
        text="".join(pieces),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens or 0,
    )


if __name__ == "__main__":
    main()
