"""PaddleOCR-VL: logits, greedy answers, pixels and prompts are those of transformers."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PaddleOCRVLImageProcessorPil

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.kind import MediaKind
from tests.checkpoints.paddleocr_vl import TOKEN_IDS, make_paddleocr_vl_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import make_prompt
from tests.engine.worker.models.square_images import prompt_of_an_image, sizes_are_those_of
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.oracles.answers import Answer, generate, load_oracle
from tests.oracles.qwen_vl import token_types

CHECKPOINT = make_paddleocr_vl_checkpoint
make = partial(make_prompt, placeholder_ids={MediaKind.IMAGE: TOKEN_IDS["<|IMAGE_PLACEHOLDER|>"]})


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], images: Sequence[np.ndarray], num_tokens: int
) -> Answer:
    """Continues a prompt with images that need no resizing."""
    media: dict[str, Any] = {}
    if images:
        process: Any = PaddleOCRVLImageProcessorPil.from_pretrained(path, do_resize=False)
        media = process(list(images), return_tensors="pt") | {"mm_token_type_ids": token_types(len(prompt), spans)}
    return generate(load_oracle(path), prompt, num_tokens, **media)


PROMPTS = {
    "text": make(1, 150),
    "image": make(2, 5, (84, 56), 9),
    "images": make(3, 3, (28, 28), 1, (56, 196), 1, (252, 28), 4),
}


class TestSteps(LevelSteps):
    agrees = staticmethod(agreement(greedy_answer, "spans", "images"))
    divided, cached = "images", ("image", "images")
    blocks = (1,)


test_sizes_of_images_are_those_of_the_reference = sizes_are_those_of(PaddleOCRVLImageProcessorPil, most_elongated=100)


test_an_image_has_a_token_for_each_square = prompt_of_an_image(
    "<|begin_of_sentence|>User: <|IMAGE_START|>",
    TOKEN_IDS["<|IMAGE_PLACEHOLDER|>"],
    "OCR:",
    "<|IMAGE_END|>OCR:\nAssistant:\n",
)


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"use_bias": True}}, "'use_bias': expected False, got True"),
    ({"text_config": {"hidden_act": "gelu"}}, "'hidden_act': expected 'silu', got 'gelu'"),
    ({"vision_config": {"hidden_act": "gelu"}}, "'vision_config.hidden_act': expected 'gelu_pytorch_tanh'"),
    ({"vision_config": {"rope_parameters": {"rope_theta": 5e3}}}, "rope_theta': expected 10000.0, got 5000.0"),
)
