"""InternVL in the offline API: images of any size and videos become the reference's tiles, prompts and answers."""

from pathlib import Path

from glimpse.offline.llm import LLM, SamplingParams
from tests.checkpoints.internvl import SIDE, make_internvl_checkpoint, make_original_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, prompt_text, text, user, video_part
from tests.media.images import scene
from tests.media.videos import greys, video
from tests.oracles.internvl import frames_of, greedy_answer, prompt_ids, tiles_of

CHECKPOINT = make_internvl_checkpoint
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
FRAMES = [scene(90, 50, seed) for seed in range(3)]


def test_answers_images_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [scene(200, 61, 1), scene(20, 21, 2), scene(37, 301, 3)]
    messages = user(image_pil(images[0]), text("the"), image_pil(images[1]), image_pil(images[2]), text("in"))
    (output,) = llm.chat(messages, GREEDY)
    tiles = [tiles_of(checkpoint, image) for image in images]
    assert [len(each) for each in tiles] == [4, 1, 9]
    reference = user({"type": "image"}, text("the"), {"type": "image"}, {"type": "image"}, text("in"))
    assert output.prompt_token_ids == prompt_ids(checkpoint, reference, images)
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, tiles, 10).token_ids


def test_answers_videos_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    (output,) = llm.chat(user(text("the"), video_part(FRAMES), text("in")), GREEDY)
    assert output.prompt_token_ids == prompt_ids(checkpoint, user(text("the"), {"type": "video"}, text("in")), [], [3])
    frames = frames_of(FRAMES, SIDE)
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, [frames], 10).token_ids


def test_the_original_layout_answers_images_and_videos_like_the_reference(checkpoint: Path, tmp_path: Path) -> None:
    original = load(make_original_checkpoint(checkpoint, tmp_path))
    image = scene(200, 61, 1)
    (output,) = original.chat(user(image_pil(image), text("in")), GREEDY)
    assert output.prompt_token_ids == prompt_ids(checkpoint, user({"type": "image"}, text("in")), [image])
    tiles = tiles_of(checkpoint, image)
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, [tiles], 10).token_ids
    (output,) = original.chat(user(video_part(FRAMES), text("in")), GREEDY)
    assert output.prompt_token_ids == prompt_ids(checkpoint, user({"type": "video"}, text("in")), [], [3])
    frames = frames_of(FRAMES, SIDE)
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, [frames], 10).token_ids


def test_prompts_of_token_ids_and_texts_hold_images(llm: LLM) -> None:
    image = scene(50, 70)
    (chatted,) = llm.chat(user(image_pil(image), text("the")), GREEDY)
    prompt = "<|im_start|>user\n<IMG_CONTEXT>\nthe<|im_end|>\n<|im_start|>assistant\n"
    (completed,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image}}, GREEDY)
    assert completed.prompt_token_ids == chatted.prompt_token_ids
    assert completed.outputs == chatted.outputs


def test_samples_a_frame_per_second_of_a_file(llm: LLM, checkpoint: Path) -> None:
    data = video(greys(40, width=56, height=40))  # 4 seconds
    (output,) = llm.chat(user(video_part(data)), GREEDY)
    assert prompt_text(checkpoint, output).count("\nFrame") == 4
    (output,) = llm.chat(user(video_part(data, num_frames=2)), GREEDY)
    assert prompt_text(checkpoint, output).count("\nFrame") == 2
