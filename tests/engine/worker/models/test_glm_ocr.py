"""GLM-OCR: logits, greedy answers, sizes of images and prompts are those of transformers."""

from functools import partial

from transformers import Glm46VImageProcessorPil

from glimpse.media.kind import MediaKind
from tests.checkpoints.glm import TOKEN_IDS, make_glm_ocr_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import make_prompt
from tests.engine.worker.models.square_images import prompt_of_an_image, sizes_are_those_of
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.oracles.qwen_vl import greedy_answer

CHECKPOINT = make_glm_ocr_checkpoint
make = partial(make_prompt, placeholder_ids={MediaKind.IMAGE: TOKEN_IDS["<|image|>"]})
PROMPTS = {
    "text": make(1, 150),
    "image": make(2, 5, (84, 56), 9),
    "images": make(3, 3, (28, 28), 1, (56, 196), 1, (252, 28), 4),
}


class TestSteps(LevelSteps):
    agrees = staticmethod(agreement(greedy_answer, "spans", "images"))
    divided, cached = "images", ("image", "images")
    blocks = (1,)


test_sizes_of_images_are_those_of_the_reference = sizes_are_those_of(Glm46VImageProcessorPil, most_elongated=200)


test_an_image_has_a_token_for_each_square = prompt_of_an_image(
    "[gMASK]<sop><|user|>\n<|begin_of_image|>",
    TOKEN_IDS["<|image|>"],
    "Text Recognition:",
    "<|end_of_image|>Text Recognition:<|assistant|>\n",
)


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"hidden_act": "gelu"}}, "'text_config.hidden_act': expected 'silu', got 'gelu'"),
    (
        {"text_config": {"rope_parameters": {"mrope_section": [4, 6, 5]}}},
        r"expected three numbers that add up to 16, .* got \[4, 6, 5\]",
    ),
    ({"vision_config": {"out_hidden_size": 32}}, "expected the decoder's hidden_size 64, got 32"),
)
