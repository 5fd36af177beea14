"""Every model family with media answers OpenAI's client through Envoy, and again from the prefix cache."""

import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat.chat_completion import Choice

from glimpse.engine.checkpoint.families.registry import FAMILIES, load_model_config
from glimpse.engine.checkpoint.families.spec import FamilySpec
from tests.audio_checkpoints import make_audio_checkpoint
from tests.checkpoints import make_checkpoint
from tests.e2e.images import data_url, tiles
from tests.e2e.stack import Stack, start_stack
from tests.gemma3_checkpoints import make_gemma3_checkpoint
from tests.idefics3_checkpoints import make_idefics3_checkpoint
from tests.internvl_checkpoints import make_internvl_checkpoint, make_original_checkpoint
from tests.llava_checkpoints import make_llava_checkpoint, make_next_checkpoint, make_onevision_checkpoint
from tests.media.audio import audio_file, noise
from tests.media.videos import video
from tests.minicpmv_checkpoints import make_minicpmv_checkpoint
from tests.phi3v_checkpoints import make_phi3v_checkpoint
from tests.qwen3_vl_checkpoints import make_qwen3_vl_checkpoint
from tests.ultravox_checkpoints import make_ultravox_checkpoint

BLOCK_SIZE = 32
"""Tokens of a block of the KV cache, the default. The last tokens of a prompt, up to a block, are never cached."""
NUM_TOKENS = 8
QUESTION = "What do you see and hear? " * 4
"""Longer than a block in every tokenizer, so that the block after the media is cached too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A row of the registry, as it is tried here."""

    make: Callable[[Path], Path]
    """Writes a tiny checkpoint into a folder."""
    kinds: tuple[str, ...]
    """The media that the model supports."""
    num_images: int = 2
    """Images in one prompt."""


IMAGES, IMAGES_AND_VIDEOS = ("image",), ("image", "video")
TRIED: Mapping[str, Family] = {
    "Qwen2VLForConditionalGeneration": Family(make=make_checkpoint, kinds=IMAGES_AND_VIDEOS),
    "Qwen2_5_VLForConditionalGeneration": Family(
        make=lambda path: make_checkpoint(path, family="qwen2_5_vl"), kinds=IMAGES_AND_VIDEOS
    ),
    "Qwen3VLForConditionalGeneration": Family(  # tied random weights predict the last token again
        make=lambda path: make_qwen3_vl_checkpoint(path, tied=False), kinds=IMAGES_AND_VIDEOS
    ),
    "Qwen2AudioForConditionalGeneration": Family(make=make_audio_checkpoint, kinds=("audio",)),
    "SmolVLMForConditionalGeneration": Family(make=make_idefics3_checkpoint, kinds=IMAGES_AND_VIDEOS),
    "Idefics3ForConditionalGeneration": Family(
        make=lambda path: make_idefics3_checkpoint(path, "idefics3"), kinds=IMAGES
    ),
    "LlavaForConditionalGeneration": Family(make=make_llava_checkpoint, kinds=IMAGES),
    "LlavaNextForConditionalGeneration": Family(make=make_next_checkpoint, kinds=IMAGES),
    "LlavaOnevisionForConditionalGeneration": Family(make=make_onevision_checkpoint, kinds=IMAGES_AND_VIDEOS),
    "InternVLForConditionalGeneration": Family(make=make_internvl_checkpoint, kinds=IMAGES_AND_VIDEOS),
    "InternVLChatModel": Family(
        make=lambda path: make_original_checkpoint(make_internvl_checkpoint(path / "source"), path),
        kinds=IMAGES_AND_VIDEOS,
    ),
    "Gemma3ForConditionalGeneration": Family(make=make_gemma3_checkpoint, kinds=IMAGES),
    "UltravoxModel": Family(make=make_ultravox_checkpoint, kinds=("audio",)),
    "MiniCPMV": Family(make=make_minicpmv_checkpoint, kinds=IMAGES_AND_VIDEOS),
    "Phi3VForCausalLM": Family(make=make_phi3v_checkpoint, kinds=IMAGES),
}
"""Architecture → how it is tried. A new family with media adds a line."""


@pytest.fixture(scope="module")
def stop() -> Iterator[Callable[[Stack], None]]:
    """Stops stacks while the next one starts, which saves a second for each."""
    with ThreadPoolExecutor() as executor:
        stopped: list[Future[int]] = []
        yield lambda stack: stopped.append(executor.submit(stack.stop))
        assert [each.result() for each in stopped] == [0] * len(stopped)


def test_every_family_with_media_is_tried() -> None:
    (without_media,) = (each.default for each in fields(FamilySpec) if each.name == "read_media")
    assert set(TRIED) == {name for name, spec in FAMILIES.items() if spec.read_media is not without_media}


@pytest.mark.parametrize("architecture", TRIED)
def test_second_answer_is_identical_and_comes_from_the_prefix_cache(
    architecture: str, tmp_path: Path, stop: Callable[[Stack], None]
) -> None:
    family = TRIED[architecture]
    checkpoint = family.make(tmp_path / "model")
    assert set(load_model_config(checkpoint).placeholder_ids) == set(family.kinds)
    stack = start_stack(tmp_path, f"--model={checkpoint}", "--dtype=float32")
    try:
        with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
            logprobs = {ask_twice(client, kind, family.num_images) for kind in ("text", *family.kinds)}
        assert len(logprobs) == 1 + len(family.kinds)  # the answers depend on the media
    finally:
        stop(stack)


def ask_twice(client: OpenAI, kind: str, num_images: int) -> float:
    """Asks about media of one kind, or with text alone, unary and then streamed. Returns the first token's logprob."""
    request = question(kind, [*parts(kind, num_images), {"type": "text", "text": QUESTION}])
    choice, cold_usage = ask(client, request)
    warm_answer, warm_usage = ask_streamed(client, request)
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


def parts(kind: str, num_images: int) -> list[dict[str, Any]]:
    """Returns the media of a prompt."""
    if kind == "image":
        urls = [data_url(tiles(seed=seed, width=96, height=64)) for seed in range(num_images)]
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
