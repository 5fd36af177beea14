"""GLM-OCR: logits, greedy answers, sizes of images and prompts are those of transformers."""

from functools import partial
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transformers import Glm46VImageProcessorPil

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing, prepare_image
from tests.checkpoints.glm import TOKEN_IDS, make_glm_ocr_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import make_prompt
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.media.images import scene
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


@given(height=st.integers(1, 4000), width=st.integers(1, 4000))
def test_sizes_of_images_are_those_of_the_reference(
    processing: ImageProcessing, checkpoint: Path, height: int, width: int
) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    grid = processing.sizing.plan(height, width).grid
    reference = Glm46VImageProcessorPil.from_pretrained(checkpoint)
    assert grid[1] * grid[2] == reference.get_number_of_image_patches(height, width)


def test_an_image_has_a_token_for_each_square(checkpoint: Path, processing: ImageProcessing) -> None:
    config, tokenizer = load_model_config(checkpoint), load_tokenizer(checkpoint)
    image = prepare_image(scene(90, 140, 1), processing)
    layout = family_of(config).layout(image, LayoutContext(model=config, encode=tokenizer.encode))
    message = ChatMessage(role="user", content=(MediaSlot(kind=MediaKind.IMAGE), "Text Recognition:"))
    found = load_prompt_builder(checkpoint, config).chat([message], [layout]).token_ids
    before, after = "[gMASK]<sop><|user|>\n<|begin_of_image|>", "<|end_of_image|>Text Recognition:<|assistant|>\n"
    images = [TOKEN_IDS["<|image|>"]] * (image.grid[1] * image.grid[2] // 4)
    assert found == [*tokenizer.encode(before), *images, *tokenizer.encode(after)]


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"hidden_act": "gelu"}}, "'text_config.hidden_act': expected 'silu', got 'gelu'"),
    (
        {"text_config": {"rope_parameters": {"mrope_section": [4, 6, 5]}}},
        r"expected three numbers that add up to 16, .* got \[4, 6, 5\]",
    ),
    ({"vision_config": {"out_hidden_size": 32}}, "expected the decoder's hidden_size 64, got 32"),
)
