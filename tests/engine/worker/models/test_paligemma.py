"""PaliGemma: logits and greedy answers match transformers, whose prompts attend to themselves in both directions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from transformers import PaliGemmaProcessor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.media.kind import MediaKind
from glimpse.offline.llm import InputError
from glimpse.offline.sampling_inputs import SamplingParams
from tests.checkpoints.llava import Names
from tests.checkpoints.paligemma import IMAGE_TOKEN_ID, NUM_IMAGE_TOKENS, SIDE, make_paligemma_checkpoint
from tests.checkpoints.refusals import assert_refused
from tests.engine.harness import Harness, PlacedMedium, prompt_with
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.engine.worker.models.steps import NativeSteps, agreement
from tests.media.images import noise_pixels
from tests.oracles.answers import Answer, generate, load_oracle
from tests.oracles.late_interaction import processor_of

CHECKPOINT = make_paligemma_checkpoint
IMAGE = -1


def place(random: np.random.Generator, _: int) -> PlacedMedium:
    return PlacedMedium(
        token_ids=[IMAGE_TOKEN_ID] * NUM_IMAGE_TOKENS,
        kind=MediaKind.IMAGE,
        grid=(1, 1),
        content=random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8),
    )


PROMPTS = {
    "text": prompt_with(1, [23], place, text_ids=(5, 256)),
    "image": prompt_with(2, [IMAGE, 9], place, text_ids=(5, 256)),
    "within": prompt_with(3, [3, IMAGE, 2], place, text_ids=(5, 256)),
}


@torch.inference_mode()
def answer(path: Path, prompt: Sequence[int], images: Sequence[np.ndarray], num_tokens: int) -> Answer:
    inputs: dict[str, Any] = {"token_type_ids": torch.zeros(1, len(prompt), dtype=torch.long)}
    if images:
        inputs |= processor_of(path, PaliGemmaProcessor).image_processor(list(images), return_tensors="pt")
    return generate(load_oracle(path), prompt, num_tokens, **inputs)


assert_agrees = agreement(answer, "images")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "within", ("image", "within")
    sizes = ((),)  # prompts are computed whole


@pytest.mark.parametrize("names", ["saved", "nested"])
def test_stored_layouts(tmp_path: Path, names: Names) -> None:
    path = make_paligemma_checkpoint(tmp_path, names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(PROMPTS["image"]), 4), path)


def test_prompts_are_those_of_the_reference_s_processor(checkpoint: Path) -> None:
    llm = load(checkpoint, max_batch_tokens=128, max_sequences=4)
    page = PIL.Image.fromarray(noise_pixels(61, 93, seed=0))
    inputs = processor_of(checkpoint, PaliGemmaProcessor)(images=[page], text=["<image>caption <b> en"])
    (token_ids,) = inputs["input_ids"]
    pixels = torch.from_numpy(np.stack(inputs["pixel_values"]))
    types = torch.tensor(inputs["token_type_ids"])
    expected = generate(load_oracle(checkpoint), token_ids, 6, token_type_ids=types, pixel_values=pixels)
    sampling = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    for _ in range(2):  # the second time from the prefix cache
        output = llm.chat(user(text("caption <b> en"), image_pil(page)), sampling, progress=False)
        assert output[0].prompt_token_ids == token_ids
        assert list(output[0].outputs[0].token_ids) == expected.token_ids
    with pytest.raises(InputError, match="this model answers one message of a user"):
        llm.chat([*user(text("a")), {"role": "assistant", "content": "b"}, *user(text("c"))])


def test_refuses_what_it_does_not_compute(checkpoint: Path, tmp_path: Path) -> None:
    config = read_json(checkpoint / "config.json")
    assert load_model_config(checkpoint).text.bidirectional_prompt
    for field, value in {"model_type": "gemma2", "use_bidirectional_attention": False, "hidden_act": "relu"}.items():
        changed = {**config, "text_config": {**config["text_config"], field: value}}
        assert_refused(tmp_path, changed, f"'text_config.{field}'")
