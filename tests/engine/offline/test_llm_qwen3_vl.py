"""Qwen3-VL in the offline API: images and videos, cached and in batches, answered like the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.reference import reference_tokenizer
from tests.engine.offline.llm_inputs import load, text, user
from tests.oracles.qwen3_vl import answer, encode, write_media
from tests.oracles.qwen_vl import image_processor, load_oracle

CHECKPOINT = make_qwen3_vl_checkpoint
NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
RANDOM = np.random.default_rng(3)
WIDE, SMALL = (RANDOM.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((64, 160), (32, 32)))
ODD = RANDOM.integers(0, 256, (45, 77, 3), dtype=np.uint8)
SIZES = ImageProcessing(sizing=SmartResize(patch_size=16, min_pixels=1024))
"""Processing of images, which `tests.media.processing.test_image` compares with the reference's."""
FRAMES = RANDOM.integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)


def image_part(pixels: np.ndarray) -> dict[str, Any]:
    return {"type": "image_pil", "image_pil": PIL.Image.fromarray(pixels)}


def video_part(frames: np.ndarray | tuple[np.ndarray, dict[str, Any]] = FRAMES, **options: Any) -> dict[str, Any]:
    return {"type": "video", "video": frames, **options}


TIMES = [index / 4 for index in range(5)]
METADATA = {"fps": 8.0, "frames_indices": [0, 2, 4, 6, 8], "total_num_frames": 10, "video_backend": "torchcodec"}
"""What qwen-vl-utils returns of frames at these times."""
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[tuple[np.ndarray, list[float]]]]] = [
    ([text("the and")], []),
    ([image_part(WIDE), text("What is it?")], [(WIDE, [])]),
    (
        [image_part(ODD), text("What is this image of odd size?")],
        [(prepare_image(PIL.Image.fromarray(ODD), SIZES).pixels, [])],
    ),
    ([text("a:"), image_part(SMALL), image_part(WIDE)], [(SMALL, []), (WIDE, [])]),
    ([video_part(fps=4), text("What happens?")], [(FRAMES, TIMES)]),
    ([video_part((FRAMES, METADATA)), text("What happens?")], [(FRAMES, TIMES)]),
    ([image_part(SMALL), text("then"), video_part(fps=4)], [(SMALL, []), (FRAMES, TIMES)]),
]


def reference(path: Path, parts: list[dict[str, Any]], media: list[tuple[np.ndarray, list[float]]]) -> list[int]:
    """Returns the reference's prompt and answer."""
    kinds = {"image_pil": "image", "video": "video"}
    content = [part if part["type"] == "text" else {"type": kinds[part["type"]]} for part in parts]
    rendered = reference_tokenizer(make_tokenizer()).apply_chat_template(
        [{"role": "user", "content": content}], chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    prompt = encode(make_tokenizer(), write_media(str(rendered), media))
    return prompt + answer(path, prompt, [pixels for pixels, _ in media], NUM_TOKENS).token_ids


def whole(output: Any) -> list[int]:
    return [*output.prompt_token_ids, *output.outputs[0].token_ids]


def test_answers_match_the_reference_in_batches_and_cached(llm: LLM, checkpoint: Path) -> None:
    expected = [reference(checkpoint, *conversation) for conversation in CONVERSATIONS]
    conversations = [user(*parts) for parts, _ in CONVERSATIONS]
    assert [whole(output) for output in llm.chat(conversations, GREEDY)] == expected
    again = llm.chat(conversations, GREEDY)
    assert [whole(output) for output in again] == expected
    assert all(output.num_cached_tokens > 0 for output in again[1:])


def test_chunked_prefill_and_two_ranks_answer_alike(checkpoint: Path) -> None:
    expected = [reference(checkpoint, *conversation) for conversation in CONVERSATIONS]
    conversations = [user(*parts) for parts, _ in CONVERSATIONS]
    for options in ({"max_batch_tokens": 16}, {"tensor_parallel_size": 2}):
        llm = load(checkpoint, **options)
        assert [whole(output) for output in llm.chat(conversations, GREEDY)] == expected


def test_a_video_at_another_rate_shares_pixels_but_no_times(llm: LLM) -> None:
    frames = np.random.default_rng(9).integers(0, 256, (4, 96, 96, 3), dtype=np.uint8)
    question = text("What happens, and where, and when?")
    (slow,) = llm.chat(user(video_part(frames, fps=0.01), question), GREEDY)
    (fast,) = llm.chat(user(video_part(frames, fps=0.02), question), GREEDY)
    (again,) = llm.chat(user(video_part(frames, fps=0.02), question), GREEDY)
    assert slow.prompt_token_ids != fast.prompt_token_ids
    assert fast.num_cached_tokens < 16 < again.num_cached_tokens


def test_accepts_what_process_vision_info_returns(llm: LLM) -> None:
    """With `return_video_metadata` pairs, without it rates; as for vLLM."""
    placeholder = "<|vision_start|><|video_pad|><|vision_end|>the"
    floats = torch.from_numpy(FRAMES.transpose(0, 3, 1, 2).copy()).float()
    pairs: list[tuple[Any, dict[str, Any]]] = [
        ([(floats, METADATA)], {"do_sample_frames": False}),
        ((floats, METADATA | {"frames_indices": torch.tensor(METADATA["frames_indices"])}), {}),
        ([(FRAMES, {"fps": 4})], {}),
        ([floats], {"do_sample_frames": False, "fps": [4.0]}),
        (floats, {"fps": 4}),
    ]
    prompts = [
        {"prompt": placeholder, "multi_modal_data": {"video": video}, "mm_processor_kwargs": kwargs}
        for video, kwargs in pairs
    ]
    first, *others = [whole(output) for output in llm.generate(prompts, GREEDY)]
    assert others == [first] * len(others)


def test_rates_are_those_of_the_videos_in_order(llm: LLM) -> None:
    video = "<|vision_start|><|video_pad|><|vision_end|>"
    prompt = {
        "prompt": f"{video}<|vision_start|><|image_pad|><|vision_end|>{video}",
        "multi_modal_data": {"video": [FRAMES, FRAMES], "image": SMALL},
    }
    slow_last, fast_last, fast = (
        llm.generate(prompt | {"mm_processor_kwargs": {"fps": fps}}, GREEDY)[0].prompt_token_ids
        for fps in ([4, 1], [1, 4], 4)
    )
    assert len({tuple(slow_last), tuple(fast_last), tuple(fast)}) == 3


def test_a_video_s_metadata_are_cached_under_its_uuid(llm: LLM) -> None:
    question = text("What happens?")
    slow, fast = ((FRAMES, METADATA | {"fps": fps}) for fps in (0.5, 8.0))
    (first,) = llm.chat(user(video_part(slow, uuid="slow"), question), GREEDY)
    (second,) = llm.chat(user(video_part(fast, uuid="fast"), question), GREEDY)
    assert first.prompt_token_ids != second.prompt_token_ids
    for uuid, expected in (("slow", first), ("fast", second)):
        cached = {"type": "video", "video": None, "uuid": uuid}
        assert whole(llm.chat(user(cached, question), GREEDY)[0]) == whole(expected)


@pytest.mark.parametrize(
    ("video", "kwargs", "message"),
    [
        ((FRAMES, {}), {}, r"video\[0\]\[1\]\.fps': expected the file's frames per second, above 0, got None"),
        ((FRAMES, {"fps": 0}), {}, r"video\[0\]\[1\]\.fps': expected the file's frames per second"),
        ((FRAMES, {"fps": 4, "frames_indices": [0, 1]}), {}, r"frames_indices': expected 5 integers, .*, got \[0, 1\]"),
        (
            (FRAMES, {"fps": 4, "frames_indices": [4, 3, 2, 1, 0]}),
            {},
            r"frames_indices': expected 5 integers, .* none less",
        ),
        (
            (FRAMES, {"fps": 4, "frames_indices": np.array([4, 3, 2, 1, 0], np.uint8)}),
            {},
            r"frames_indices': expected 5 integers, .* none less",
        ),
        ((FRAMES, {"fps": 4, "mood": 1}), {}, r"video\[0\]\[1\]\.mood': unknown field"),
        (
            (b"x", {"fps": 4}),
            {},
            r"video\[0\]\[0\]': expected decoded frames, to which the metadata belong, got a file",
        ),
        ([b"x"], {"do_sample_frames": False}, r"do_sample_frames': expected False, .*, got it with a video file"),
        (FRAMES, {"do_sample_frames": True}, r"do_sample_frames': expected False, .*, got True; use fps or num_frames"),
        (FRAMES, {"fps": [4, 4]}, r"mm_processor_kwargs\.fps': expected one for each of 1 videos, got 2"),
        (FRAMES, {"fps": ["4"]}, r"mm_processor_kwargs\.fps': expected a number, got a string"),
    ],
)
def test_names_the_field_of_wrong_metadata(llm: LLM, video: Any, kwargs: dict[str, Any], message: str) -> None:
    prompt = {"prompt": "<|video_pad|>", "multi_modal_data": {"video": video}, "mm_processor_kwargs": kwargs}
    with pytest.raises(InputError, match=message):
        llm.generate(prompt, GREEDY)


def test_a_frame_rate_contradicts_metadata(llm: LLM) -> None:
    with pytest.raises(InputError, match=r"content\[0\]\.video\.fps': expected none, because the metadata"):
        llm.chat(user(video_part((FRAMES, METADATA), fps=2)), GREEDY)


def test_resizes_videos_to_the_volume_that_a_request_allows(llm: LLM) -> None:
    def num_placeholders(**options: Any) -> int:
        (output,) = llm.chat(user(video_part(fps=4, **options)), SamplingParams(temperature=0, max_tokens=1))
        return output.prompt_token_ids.count(278)

    assert num_placeholders() == 3 * 2 * 3
    assert num_placeholders(max_pixels=64 * 64) == 3 * 2
    assert num_placeholders(min_pixels=128 * 192) == 3 * 4 * 6
    assert num_placeholders(total_pixels=3 * 32 * 32) == 3


@torch.inference_mode()
def test_embeddings_replace_images_and_no_videos(checkpoint: Path) -> None:
    llm = load(checkpoint, enable_mm_embeds=True)
    grid = torch.tensor([[1, 4, 10]])
    patches = image_processor(checkpoint)([WIDE], return_tensors="pt")["pixel_values"]
    encoded = load_oracle(checkpoint).model.visual(patches, grid_thw=grid)
    rows = torch.cat([encoded.pooler_output, *encoded.deepstack_features], dim=1)
    embeddings = {"type": "image_embeds", "image_embeds": {"image_embeds": rows, "image_grid_thw": grid}}
    question = text("What is it?")
    outputs = llm.chat([user(image_part(WIDE), question), user(embeddings, question)], GREEDY)
    assert whole(outputs[0]) == whole(outputs[1])
    of_video = {"type": "video_embeds", "video_embeds": {"video_embeds": rows, "video_grid_thw": grid}}
    with pytest.raises(InputError, match="the model does not accept embeddings of videos"):
        llm.chat(user(of_video, question), GREEDY)
