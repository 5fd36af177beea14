"""Answers of a family's stack, and the same again from the prefix cache."""

import base64
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat.chat_completion import Choice

from glimpse.client import Client
from glimpse.engine.checkpoint.families.registry import architecture_of
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.v1 import chat_pb2, generation_pb2, model_pb2, model_pb2_grpc
from tests.e2e.images import data_url, tiles
from tests.e2e.stack import Stack
from tests.media.audio import audio_file, noise
from tests.media.videos import video

BLOCK_SIZE = 32
"""Tokens of a block of the KV cache, the default. The last tokens of a prompt, up to a block, are never cached."""
NUM_TOKENS = 8
QUESTION = "What do you see and hear? " * 4
"""Longer than a block in every tokenizer, so that the block after the media is cached too."""


def check_second_answers(stack: Stack, checkpoint: Path, architecture: str, *kinds: str) -> None:
    """Asks OpenAI's client twice about each kind of media that the model supports, and about none."""
    assert architecture_of(read_json(checkpoint / "config.json")) == architecture
    with grpc.insecure_channel(stack.target) as channel:
        listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    modalities = {model_pb2.Modality.Name(each) for each in listed.data[0].input_modalities}
    assert modalities == {f"MODALITY_{kind.upper()}" for kind in ("text", *kinds)}
    with (
        OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client,
        Client(stack.target) as quoting,
    ):
        logprobs = {ask_twice(client, quoting, kind) for kind in ("text", *kinds)}
    assert len(logprobs) == 1 + len(kinds)  # the answers depend on the media


def ask_twice(client: OpenAI, quoting: Client, kind: str) -> float:
    """Asks about media of one kind, or with text alone, unary and then streamed. Returns the first token's logprob."""
    request = question(kind, [*parts(kind), {"type": "text", "text": QUESTION}])
    check_quote(quoting, request)
    choice, cold_usage = ask(client, request)
    quoted = check_quote(quoting, request)
    warm_answer, warm_usage = ask_streamed(client, request)
    check_kept(quoted, warm_usage)
    assert warm_answer == choice.message.content
    assert cold_usage.completion_tokens == warm_usage.completion_tokens == NUM_TOKENS
    cold, warm = prompt_details(cold_usage), prompt_details(warm_usage)
    assert cold["cached_tokens"] == 0
    assert warm["cached_tokens"] >= warm_usage.prompt_tokens - BLOCK_SIZE > 0
    for each in ("image", "video", "audio"):
        assert (cold[f"{each}_tokens"] > 0) == (each == kind)
        assert warm[f"{each}_tokens"] == cold[f"{each}_tokens"]
    assert choice.logprobs is not None
    assert choice.logprobs.content
    return choice.logprobs.content[0].logprob


def check_quote(client: Client, request: Any) -> chat_pb2.CountTokensResponse:
    """Asks what a request would cost, which has tokens for each of its parts. Twice, since quoting computes nothing."""
    salt = request["extra_body"]["cache_salt"]
    first, quoted = (client.count_tokens(request["messages"], quote=True, cache_salt=salt) for _ in range(2))
    assert first.prompt_tokens_details == quoted.prompt_tokens_details
    content = request["messages"][0]["content"]
    assert [part.part_index for part in quoted.quote.parts] == [*range(len(content))]
    assert [part.HasField("medium") for part in quoted.quote.parts] == [part["type"] != "text" for part in content]
    tokens = [part.tokens for part in quoted.quote.parts]
    assert all(tokens)
    assert sum(tokens) < quoted.prompt_tokens
    details = quoted.prompt_tokens_details
    assert sum(tokens[:-1]) == details.image_tokens + details.video_tokens + details.audio_tokens
    return quoted


def check_kept(quoted: chat_pb2.CountTokensResponse, usage: CompletionUsage) -> None:
    """Checks that a request cost what was quoted for it."""
    assert quoted.prompt_tokens == usage.prompt_tokens
    names = ("cached_tokens", "image_tokens", "video_tokens", "audio_tokens")
    assert {name: getattr(quoted.prompt_tokens_details, name) for name in names}.items() <= prompt_details(
        usage
    ).items()
    media = (usage.model_extra or {}).get("media_usage", {}).get("media", [])
    quoted_media = [part.medium for part in quoted.quote.parts if part.HasField("medium")]
    tiers = [generation_pb2.MediaCacheTier.Name(each.cache_tier) for each in quoted_media]
    assert tiers == [f"MEDIA_CACHE_TIER_{each['cache_tier'].upper()}" for each in media]
    assert [each.tokens for each in quoted_media] == [each["tokens"] for each in media]
    assert quoted.quote.first_token_milliseconds > 0


def parts(kind: str) -> list[dict[str, Any]]:
    """Returns the media of a prompt."""
    if kind == "image":
        urls = [data_url(tiles(seed=seed, width=96, height=64)) for seed in range(2)]
        return [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    if kind == "video":
        frames = np.stack([np.asarray(tiles(seed=seed, width=64, height=64)) for seed in range(4)])
        url = "data:video/mp4;base64," + base64.b64encode(video(frames, fps=1)).decode()
        return [{"type": "video_url", "video_url": {"url": url}}]
    if kind == "audio":
        data = base64.b64encode(audio_file(noise(1, 16_000), 16_000)).decode()
        return [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    return []


def ask(client: OpenAI, request: Any) -> tuple[Choice, CompletionUsage]:
    """A unary answer, and its usage."""
    completion: Any = client.chat.completions.create(**request)
    return completion.choices[0], completion.usage


def ask_streamed(client: OpenAI, request: Any) -> tuple[str, CompletionUsage]:
    """The text of a streamed answer, and its usage."""
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    stream: Any = client.chat.completions.create(**request, **options)
    *chunks, last = stream
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), last.usage


def question(kind: str, content: Any) -> Any:
    """Returns the request, which shares no cached system prompt with those of other kinds.

    Models with random weights may end at once or say special tokens, so both are text here.
    """
    return {
        "model": "model",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_completion_tokens": NUM_TOKENS,
        "logprobs": True,
        "extra_body": {"ignore_eos": True, "skip_special_tokens": False, "cache_salt": kind},
    }


def prompt_details(usage: CompletionUsage) -> dict[str, int]:
    """Returns the counts of the prompt's tokens, with those that OpenAI's types do not name."""
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.model_dump()
