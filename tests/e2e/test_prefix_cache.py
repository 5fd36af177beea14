"""Prefix caching, by the usage that responses report."""

import random
from typing import Any

from openai import OpenAI

from tests.e2e.images import data_url, tiles


def ask(client: OpenAI, url: str, text: str) -> tuple[str, int, int]:
    """The answer, the number of prompt tokens, and how many of them were cached."""
    content: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
    completion = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_completion_tokens=24,
    )
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    return (
        completion.choices[0].message.content or "",
        completion.usage.prompt_tokens,
        completion.usage.prompt_tokens_details.cached_tokens or 0,
    )


def test_repeated_prompt_is_a_prefix_cache_hit(client: OpenAI) -> None:
    url, text = data_url(tiles(seed=random.random())), "What do you see? " * 100
    cold_answer, num_prompt_tokens, cold_cached = ask(client, url, text)
    warm_answer, _, warm_cached = ask(client, url, text)
    assert warm_answer == cold_answer
    assert cold_cached < 64
    assert warm_cached > num_prompt_tokens - 64


def test_another_image_is_no_prefix_cache_hit(client: OpenAI) -> None:
    text = "What do you see? " * 100
    ask(client, data_url(tiles(seed=random.random())), text)
    _, _, cached = ask(client, data_url(tiles(seed=random.random())), text)
    assert cached < 64
