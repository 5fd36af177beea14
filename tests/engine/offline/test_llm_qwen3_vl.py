"""Qwen3-VL in the offline API: images and videos, cached and in batches, answered like the reference."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from glimpse.engine.llm import LLM, InputError, SamplingParams
from glimpse.media.processing.image import ImageProcessing, prepare_image
from glimpse.media.processing.sizing.smart_resize import SmartResize
from tests.checkpoints import CHAT_TEMPLATE, make_tokenizer
from tests.engine.offline.llm_inputs import load, text, user
from tests.engine.text.reference import reference_tokenizer
from tests.oracle import image_processor, load_oracle
from tests.qwen3_vl_checkpoints import make_qwen3_vl_checkpoint
from tests.qwen3_vl_reference import answer, encode, write_media

NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
RANDOM = np.random.default_rng(3)
WIDE, SMALL = (RANDOM.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((64, 160), (32, 32)))
ODD = RANDOM.integers(0, 256, (45, 77, 3), dtype=np.uint8)
SIZES = ImageProcessing(sizing=SmartResize(patch_size=16, min_pixels=1024))
"""Processing of images, which `tests.media.processing.test_image` compares with the reference's."""
FRAMES = RANDOM.integers(0, 256, (5, 64, 96, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3_vl_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return load(checkpoint)


def image_part(pixels: np.ndarray) -> dict[str, Any]:
    return {"type": "image_pil", "image_pil": PIL.Image.fromarray(pixels)}


def video_part(frames: np.ndarray = FRAMES, **options: Any) -> dict[str, Any]:
    return {"type": "video", "video": frames, **options}


TIMES = [index / 4 for index in range(5)]
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[tuple[np.ndarray, list[float]]]]] = [
    ([text("the and")], []),
    ([image_part(WIDE), text("What is it?")], [(WIDE, [])]),
    (
        [image_part(ODD), text("What is this image of odd size?")],
        [(prepare_image(PIL.Image.fromarray(ODD), SIZES).pixels, [])],
    ),
    ([text("a:"), image_part(SMALL), image_part(WIDE)], [(SMALL, []), (WIDE, [])]),
    ([video_part(fps=4), text("What happens?")], [(FRAMES, TIMES)]),
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
