"""Gemma 3 in the offline API: the reference's answers, from images of any size, in small steps and from the cache."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.engine.errors import CheckpointError
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.gemma3 import NUM_IMAGE_TOKENS, TOKEN_IDS, make_gemma3_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.media.images import noise_pixels
from tests.oracles.gemma3 import greedy_answer

CHECKPOINT = make_gemma3_checkpoint
OPTIONS = {"max_batch_tokens": 12, "max_sequences": 2, "block_size": 8, "enable_mm_embeds": True}
"""Steps of 12 tokens, which hold the 9 of an image."""
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def image(array: np.ndarray) -> dict[str, Any]:
    return image_pil(PIL.Image.fromarray(array))


def test_answers_images_of_odd_sizes_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [noise_pixels(41, 97, 1), noise_pixels(203, 60, 2), noise_pixels(60, 60, 3)]
    (output,) = llm.chat(user(image(images[0]), text("the an"), image(images[1]), image(images[2])), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, images, 8)
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.prompt_token_ids.count(TOKEN_IDS["<bos>"]) == 1
    assert output.prompt_token_ids.count(TOKEN_IDS["<image_soft_token>"]) == 3 * NUM_IMAGE_TOKENS


@pytest.mark.parametrize("words", ["", "a", "ab", "the thing in", "the thing in an " * 3])
def test_answers_from_the_prefix_cache_like_the_reference(llm: LLM, checkpoint: Path, words: str) -> None:
    """An image of which all blocks are cached stands at different distances from the end."""
    array = noise_pixels(50, 50, 4)
    messages = user(text("the an in " * 3), image(array), text(f"{words}the"))
    first, again = (llm.chat(messages, GREEDY)[0] for _ in range(2))
    expected = greedy_answer(checkpoint, first.prompt_token_ids, [array], 8)
    assert first.outputs[0].token_ids == again.outputs[0].token_ids == expected.token_ids
    assert again.num_cached_tokens > 0


def test_refuses_what_the_model_does_not_read_by_name(llm: LLM) -> None:
    with pytest.raises(InputError, match="does not support video input"):
        llm.chat(user({"type": "video", "video": np.zeros((2, 56, 56, 3), np.uint8)}, text("the")), GREEDY)


def test_refuses_steps_without_room_for_an_image(checkpoint: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"'--max-batch-tokens': expected at least 13, since .* the 9 tokens .*, got 12"
    ):
        load(checkpoint, max_batch_tokens=12, max_sequences=4)
