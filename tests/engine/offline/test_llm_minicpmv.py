"""MiniCPM-V 2.6 in the offline API: images of any size become the reference's slices, prompts and answers."""

from pathlib import Path
from typing import Any

import pytest

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.engine.offline.llm_inputs import base64_png, image_pil, load, text, user
from tests.media.images import scene
from tests.oracles.minicpmv import Frames, greedy_answer, prompt_ids, slices_of

CHECKPOINT = make_minicpmv_checkpoint
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
URL = f"data:image/png;base64,{base64_png(scene(9, 9))}"


def test_answers_images_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [scene(200, 61, 1), scene(20, 21, 2), scene(37, 301, 3)]
    messages = user(image_pil(images[0]), text("the"), image_pil(images[1]), image_pil(images[2]), text("in"))
    (output,) = llm.chat(messages, GREEDY)
    reference = user({"type": "image"}, text("the"), {"type": "image"}, {"type": "image"}, text("in"))
    assert output.prompt_token_ids == prompt_ids(checkpoint, reference, images)
    slices = [slices_of(image) for image in images]
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, slices, 10).token_ids


def test_answers_videos_and_images_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    frames, image = [scene(60, 40, seed) for seed in range(3)], scene(20, 21, 9)
    (output,) = llm.chat(user({"type": "video", "video": frames}, image_pil(image), text("in")), GREEDY)
    expected = Frames(pixels=[slices_of(frame, most=1)[0] for frame in frames], packs=[[-1]] * 3)
    answer = greedy_answer(checkpoint, output.prompt_token_ids, [expected, slices_of(image)], 10)
    assert output.outputs[0].token_ids == answer.token_ids


def test_version_4_5_answers_videos_like_the_reference(tmp_path: Path) -> None:
    path = make_minicpmv_checkpoint(tmp_path, "4.5")
    frames = [scene(60, 40, seed) for seed in range(4)]
    messages = user({"type": "video", "video": frames, "fps": 2}, text("in"))
    (output,) = load(path).chat(messages, GREEDY)
    expected = Frames(pixels=[slices_of(frame, most=1)[0] for frame in frames], packs=[[0], [5], [10], [15]])
    answer = greedy_answer(path, output.prompt_token_ids, [expected], 10)
    assert output.outputs[0].token_ids == answer.token_ids


def test_prompts_of_texts_hold_images(llm: LLM) -> None:
    image = scene(50, 70)
    (chatted,) = llm.chat(user(image_pil(image), text("the")), GREEDY)
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    prompt = f"{system}<|im_start|>user\n(<image>./</image>)\nthe<|im_end|>\n<|im_start|>assistant\n"
    (completed,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image}}, GREEDY)
    assert completed.prompt_token_ids == chatted.prompt_token_ids
    assert completed.outputs == chatted.outputs


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "max_pixels": 10_000}}, "max_pixels.*the model decides"),
        ({"type": "video", "video": [scene(9, 9)], "max_pixels": 10_000}, "max_pixels.*the model decides"),
        (image_pil(scene(402, 2)), "an aspect ratio of at most 200:1"),
    ],
    ids=["bounds", "video", "elongated"],
)
def test_refuses_by_name_what_it_does_not_support(llm: LLM, part: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        llm.chat(user(part), GREEDY)
