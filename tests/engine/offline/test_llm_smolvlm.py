"""SmolVLM in the offline API: images of any size and videos become the reference's tiles, prompts and answers."""

from pathlib import Path

import pytest

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, prompt_text, text, user, video_part
from tests.media.images import scene
from tests.media.videos import greys, video
from tests.oracles.idefics3 import greedy_answer, tiles_of

CHECKPOINT = make_idefics3_checkpoint
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
FRAMES = [scene(90, 50, seed) for seed in range(3)]


def test_answers_images_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [scene(200, 61, 1), scene(20, 21, 2), scene(37, 301, 3)]
    messages = user(image_pil(images[0]), text("the"), image_pil(images[1]), image_pil(images[2]), text("in"))
    (output,) = llm.chat(messages, GREEDY)
    tiles = [tiles_of(checkpoint, image) for image in images]
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, tiles, 10).token_ids


def test_answers_videos_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    (output,) = llm.chat(user(text("the"), video_part(FRAMES, fps=0.5), text("in")), GREEDY)
    tiles = [tiles_of(checkpoint, frame, split=False) for frame in FRAMES]
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, tiles, 10).token_ids
    assert "three frames from a 0:00:04 [H:MM:SS] video.\n\nFrame from 00:00:" in prompt_text(checkpoint, output)
    assert "Frame from 00:04:" in prompt_text(checkpoint, output)


def test_prompts_of_token_ids_and_texts_hold_images(llm: LLM) -> None:
    image = scene(50, 70)
    (chatted,) = llm.chat(user(image_pil(image), text("the")), GREEDY)
    prompt = "<|im_start|>User:<image>the<end_of_utterance>\nAssistant:"
    (completed,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image}}, GREEDY)
    assert completed.prompt_token_ids == chatted.prompt_token_ids
    assert completed.outputs == chatted.outputs


def test_samples_a_frame_per_second_of_a_file(llm: LLM, checkpoint: Path) -> None:
    data = video(greys(40, width=56, height=40))  # 4 seconds
    (output,) = llm.chat(user(video_part(data)), GREEDY)
    assert "four frames from a 0:00:04 [H:MM:SS] video" in prompt_text(checkpoint, output)
    (output,) = llm.chat(user(video_part(data, num_frames=2)), GREEDY)
    assert "two frames" in prompt_text(checkpoint, output)


@pytest.mark.parametrize("fps", [1e-300, 1e300])
def test_any_rate_of_frames_has_times_of_few_digits(llm: LLM, checkpoint: Path, fps: float) -> None:
    (output,) = llm.chat(user(video_part(FRAMES, fps=fps)), GREEDY)
    last = "Frame from 5999:59:" if fps < 1 else "Frame from 00:00:"
    assert prompt_text(checkpoint, output).count(last) == (2 if fps < 1 else 3)
    assert llm.chat(user(video_part(video(greys(4)), fps=fps)), GREEDY)


def test_idefics3_reads_images_alone(tmp_path: Path) -> None:
    other = make_idefics3_checkpoint(tmp_path / "idefics3", "idefics3")
    llm = load(other)
    image = scene(100, 45)
    (output,) = llm.chat(user(text("the"), image_pil(image)), GREEDY)
    expected = greedy_answer(other, output.prompt_token_ids, [tiles_of(other, image)], 10)
    assert output.outputs[0].token_ids == expected.token_ids
    with pytest.raises(InputError, match="does not support video input"):
        llm.chat(user(video_part(FRAMES)), GREEDY)
