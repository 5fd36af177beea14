"""LLaVA's families in the offline API: the reference's answers, from images of any size and videos."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.llava import (
    IMAGE_TOKEN_ID,
    ONEVISION_TOKEN_IDS,
    TILE,
    make_llava_checkpoint,
    make_next_checkpoint,
    make_onevision_checkpoint,
)
from tests.engine.offline.llm_inputs import base64_png, image_pil, load, text, user
from tests.media.images import noise_pixels
from tests.oracles.llava import greedy_answer, next_answer, onevision_answer

CHECKPOINT = make_llava_checkpoint
OPTIONS = {"enable_mm_embeds": True}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def image(array: np.ndarray) -> dict[str, Any]:
    return image_pil(PIL.Image.fromarray(array))


@pytest.fixture(scope="module")
def onevision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_onevision_checkpoint(tmp_path_factory.mktemp("onevision"))


@pytest.fixture(scope="module")
def tiling(onevision: Path) -> LLM:
    return load(onevision, enable_mm_embeds=True)


def test_answers_images_of_odd_sizes_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [noise_pixels(41, 97, 1), noise_pixels(203, 60, 2)]
    (output,) = llm.chat(user(image(images[0]), text("the an"), image(images[1])), GREEDY)
    expected = greedy_answer(checkpoint, output.prompt_token_ids, images, 8)
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.prompt_token_ids[0] == 1
    assert output.prompt_token_ids.count(IMAGE_TOKEN_ID) == 32


def test_answers_with_a_chat_template_that_reads_texts(llm: LLM, checkpoint: Path, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ 'USER: ' + message['content'] + '\\n' }}{% endfor %}{{ 'ASSISTANT:' }}"
    (tmp_path / "template.jinja").write_text(template)
    array = noise_pixels(50, 50, 3)
    own = load(checkpoint, chat_template=str(tmp_path / "template.jinja"))
    (chat,) = own.chat(user(image(array), text("the an")), GREEDY)
    prompt = {"prompt": "USER: <image>\nthe an\nASSISTANT:", "multi_modal_data": {"image": array}}
    (plain,) = llm.generate(prompt, GREEDY)
    assert (chat.prompt_token_ids, chat.outputs) == (plain.prompt_token_ids, plain.outputs)


def test_takes_embeddings_in_place_of_an_image(llm: LLM) -> None:
    embeds = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    plain, gridded = (
        {"type": "image_embeds", "image_embeds": content}
        for content in (embeds, {"image_embeds": embeds, "image_grid_thw": np.array([1, 4, 4])})
    )
    for part in (plain, gridded):
        (output,) = llm.chat(user(part, text("the")), GREEDY)
        assert output.prompt_token_ids.count(IMAGE_TOKEN_ID) == 16


@pytest.mark.parametrize("bound", ["min_pixels", "max_pixels"])
def test_refuses_bounds_on_pixels_by_name(llm: LLM, bound: str) -> None:
    url = f"data:image/png;base64,{base64_png(PIL.Image.fromarray(noise_pixels(60, 60, 5)))}"
    with pytest.raises(InputError, match=f"{bound}.*the model decides the size"):
        llm.chat(user({"type": "image_url", "image_url": {"url": url, bound: 1000}}, text("the")), GREEDY)


def test_refuses_videos_by_name(llm: LLM) -> None:
    with pytest.raises(InputError, match="does not support video input"):
        llm.chat(user({"type": "video", "video": np.zeros((2, 56, 56, 3), np.uint8)}, text("the")), GREEDY)


@pytest.mark.parametrize("size", [(20, 31), (60, 150), (301, 70), (140, 140)])
def test_tiles_images_like_the_reference(tiling: LLM, onevision: Path, size: tuple[int, int]) -> None:
    array = noise_pixels(*size, 6)
    (output,) = tiling.chat(user(text("the"), image(array)), GREEDY)
    expected = onevision_answer(onevision, output.prompt_token_ids, 8, images=[array])
    assert output.outputs[0].token_ids == expected.token_ids


def test_does_not_tile_the_images_of_a_conversation_with_several(tiling: LLM, onevision: Path) -> None:
    images = [noise_pixels(60, 150, 8), noise_pixels(150, 40, 9), noise_pixels(47, 47, 10)]
    turns = [
        *user(image(images[0]), text("the")),
        {"role": "assistant", "content": "an"},
        *user(image(images[1]), image(images[2]), text("in")),
    ]
    (output,) = tiling.chat(turns, GREEDY)
    expected = onevision_answer(onevision, output.prompt_token_ids, 8, images=images, are_together=True)
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.prompt_token_ids.count(ONEVISION_TOKEN_IDS["<image>"]) == 3 * (9 + 1)


def test_tiles_each_of_several_images_of_next_like_the_reference(tmp_path: Path) -> None:
    path = make_next_checkpoint(tmp_path)
    images = [noise_pixels(60, 150, 11), noise_pixels(150, 40, 12), noise_pixels(56, 56, 13)]
    turns = [
        *user(image(images[0]), text("the")),
        {"role": "assistant", "content": "an"},
        *user(image(images[1]), image(images[2]), text("in")),
    ]
    (output,) = load(path).chat(turns, GREEDY)
    expected = next_answer(path, output.prompt_token_ids, images, 8)
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.prompt_token_ids.count(IMAGE_TOKEN_ID) > 3 * 2 * 16


def test_answers_a_video_and_an_image_like_the_reference(tiling: LLM, onevision: Path) -> None:
    frames = np.stack([noise_pixels(TILE, TILE, seed) for seed in range(6)])
    array = noise_pixels(80, 100, 7)
    (output,) = tiling.chat(user({"type": "video", "video": frames}, image(array), text("the")), GREEDY)
    expected = onevision_answer(onevision, output.prompt_token_ids, 8, images=[array], frames=frames)
    assert output.outputs[0].token_ids == expected.token_ids
    assert output.prompt_token_ids.count(ONEVISION_TOKEN_IDS["<video>"]) == 6 * 4 + 1
