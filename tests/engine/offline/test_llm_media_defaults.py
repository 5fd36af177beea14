"""`mm_processor_kwargs`: defaults for resizing and sampling media."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.engine.offline.llm_inputs import PLACEHOLDER, base64_png, image_pil, load, user
from tests.media.videos import greys, video

GREEDY = SamplingParams(temperature=0, max_tokens=8)
LARGE = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8))
SIDE = 28
"""Side of a square that becomes one token, in pixels."""
VIDEO_PLACEHOLDER = PLACEHOLDER.replace("image", "video")


def num_media_tokens(outputs: Any) -> int:
    """Returns the number of placeholders in a prompt with one medium, where they are the most frequent token."""
    [output] = outputs
    return max(map(output.prompt_token_ids.count, set(output.prompt_token_ids)))


def image_url(**bounds: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": base64_png(LARGE)} | bounds}


@pytest.mark.parametrize("part", [image_pil(LARGE), image_url()])
def test_applies_bounds_to_the_images_of_a_conversation(llm: LLM, part: dict[str, Any]) -> None:
    assert num_media_tokens(llm.chat(user(part), GREEDY)) == 64
    bounded = llm.chat(user(part), GREEDY, mm_processor_kwargs={"max_pixels": 4 * SIDE * SIDE})
    assert num_media_tokens(bounded) == 4
    assert bounded == llm.chat(user(image_url(max_pixels=4 * SIDE * SIDE)), GREEDY)


def test_an_image_s_own_bounds_take_precedence(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, mm_processor_kwargs={"min_pixels": SIDE * SIDE, "max_pixels": 16 * SIDE * SIDE})
    nearer = {"max_pixels": 9 * SIDE * SIDE}
    prompt = {"prompt": PLACEHOLDER, "multi_modal_data": {"image": LARGE}}
    assert num_media_tokens(llm.generate(prompt, GREEDY)) == 16
    assert num_media_tokens(llm.generate(prompt | {"mm_processor_kwargs": nearer}, GREEDY)) == 9
    assert num_media_tokens(llm.chat(user(image_url()), GREEDY, mm_processor_kwargs=nearer)) == 9
    nearest = user(image_url(max_pixels=4 * SIDE * SIDE))
    assert num_media_tokens(llm.chat(nearest, GREEDY, mm_processor_kwargs=nearer)) == 4


def test_applies_bounds_and_frame_sampling_to_videos(llm: LLM) -> None:
    prompt = {"prompt": VIDEO_PLACEHOLDER, "multi_modal_data": {"video": video(greys(20, width=112, height=112))}}
    assert num_media_tokens(llm.generate(prompt, GREEDY)) == 2 * 144, "4 frames: two frames share their tokens"
    sampled = prompt | {"mm_processor_kwargs": {"num_frames": 8}}
    assert num_media_tokens(llm.generate(sampled, GREEDY)) == 4 * 144
    smaller = prompt | {"mm_processor_kwargs": {"fps": 2, "max_pixels": 4 * SIDE * SIDE}}
    assert num_media_tokens(llm.generate(smaller, GREEDY)) == 2 * 4


def test_a_video_s_own_frame_sampling_takes_precedence(tiny_checkpoint: Path) -> None:
    llm = load(tiny_checkpoint, mm_processor_kwargs={"num_frames": 8})
    url = base64.b64encode(video(greys(20, width=112, height=112))).decode()
    assert num_media_tokens(llm.chat(user({"type": "video_url", "video_url": {"url": url}}), GREEDY)) == 4 * 144
    own = {"type": "video_url", "video_url": {"url": url, "fps": 5}}
    assert num_media_tokens(llm.chat(user(own), GREEDY)) == 5 * 144


def test_an_operator_s_defaults_yield_to_those_of_a_prompt(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": 1, "max_new_tokens": 3}')
    llm = LLM(
        tiny_checkpoint, dtype="float32", device="cpu", kv_cache_bytes=8 << 20, max_model_len=2048, num_threads=1,
        generation_config=tmp_path, media_io_kwargs={"video": {"num_frames": 8}},
        mm_processor_kwargs={"max_pixels": "checkpoint"},
    )  # fmt: skip
    assert llm.get_default_sampling_params() == SamplingParams(top_k=1, max_tokens=3)
    image = LARGE.resize((40 * SIDE, 40 * SIDE))
    output = llm.chat(user(image_pil(image)))
    assert num_media_tokens(output) == 1600
    assert len(output[0].outputs[0].token_ids) <= 3
    smaller = llm.chat(user(image_pil(image)), GREEDY, mm_processor_kwargs={"max_pixels": 4 * SIDE * SIDE})
    assert num_media_tokens(smaller) == 4
    prompt = {"prompt": VIDEO_PLACEHOLDER, "multi_modal_data": {"video": video(greys(20, width=112, height=112))}}
    assert num_media_tokens(llm.generate(prompt, GREEDY)) == 4 * 144
    assert num_media_tokens(llm.generate(prompt | {"mm_processor_kwargs": {"fps": 2}}, GREEDY)) == 2 * 144


def test_a_cached_image_is_only_found_with_the_same_bounds(llm: LLM) -> None:
    bounds = {"max_pixels": 4 * SIDE * SIDE}
    named = {"type": "image_pil", "uuid": "bounded"}
    sent = llm.chat(user(named | {"image_pil": LARGE}), GREEDY, mm_processor_kwargs=bounds)
    again = llm.chat(user(named | {"image_pil": None}), GREEDY, mm_processor_kwargs=bounds)
    assert again[0].outputs == sent[0].outputs
    with pytest.raises(InputError, match="the cache has no image"):
        llm.chat(user(named | {"image_pil": None}), GREEDY)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": {"shortest_edge": 56}}, r"mm_processor_kwargs\.size': not supported. Use min_pixels and max_pixels"),
        ({"crop": True}, r"mm_processor_kwargs\.crop': unknown field"),
        ({"max_pixels": 0}, r"mm_processor_kwargs\.max_pixels': expected an integer of at least 1"),
        ({"max_pixels": 0.5}, r"mm_processor_kwargs\.max_pixels': expected an integer"),
        (
            {"min_pixels": 7, "max_pixels": 6},
            r"mm_processor_kwargs\.min_pixels': expected at most 'max_pixels' \(6\), got 7",
        ),
        ({"fps": 1, "num_frames": 2}, r"mm_processor_kwargs\.num_frames': expected either 'fps' or 'num_frames'"),
        ([1], "mm_processor_kwargs': expected an object, got an array"),
        ({"min_pixels": 8 * SIDE * SIDE}, r"mm_processor_kwargs\.min_pixels': expected at most .*got 6272"),
    ],
)
def test_names_invalid_defaults(llm: LLM, kwargs: Any, message: str) -> None:
    part = image_url(max_pixels=4 * SIDE * SIDE)
    with pytest.raises(InputError, match=message):
        llm.chat(user(part), GREEDY, mm_processor_kwargs=kwargs)
    if not isinstance(kwargs, dict) or kwargs.get("min_pixels") != 8 * SIDE * SIDE:
        with pytest.raises(InputError, match=r"prompts\[0\]\." + message):
            llm.generate({"prompt": "the", "mm_processor_kwargs": kwargs}, GREEDY)
