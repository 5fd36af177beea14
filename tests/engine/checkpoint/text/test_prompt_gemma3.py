"""Prompts and pixels of Gemma 3: equal to the reference processor's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, Gemma3Processor

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import TokenLayout
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import prepare_image
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import CHAT_TEMPLATE, NUM_IMAGE_TOKENS, SIDE, TOKEN_IDS, make_gemma3_checkpoint
from tests.oracles.gemma3 import image_processor

CHECKPOINT = make_gemma3_checkpoint
IMAGE = MediaSlot(kind=MediaKind.IMAGE)
LAYOUT = TokenLayout(
    kind=MediaKind.IMAGE,
    leading="\n\n",
    pieces=((TOKEN_IDS["<start_of_image>"],), NUM_IMAGE_TOKENS, (TOKEN_IDS["<end_of_image>"],)),
    trailing="\n\n",
)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    return Gemma3Processor(
        image_processor=image_processor(checkpoint),
        tokenizer=AutoTokenizer.from_pretrained(checkpoint),
        chat_template=CHAT_TEMPLATE,
        image_seq_length=NUM_IMAGE_TOKENS,
    )


part = st.one_of(st.text("the an\n", min_size=1, max_size=12), st.just(IMAGE))
# Texts of a message without media become one, and the template trims each text.
contents = st.lists(
    st.lists(part, min_size=1, max_size=4).map(tuple).filter(lambda each: len(each) == 1 or IMAGE in each),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)
@given(turns=contents, system=st.none() | st.text("the an", min_size=1, max_size=9))
def test_prompts_equal_the_reference_processors(
    checkpoint: Path, reference: Any, turns: list[tuple[str | MediaSlot, ...]], system: str | None
) -> None:
    roles = ["user" if index % 2 == 0 else "assistant" for index in range(len(turns))]
    messages = [ChatMessage(role=role, content=content) for role, content in zip(roles, turns, strict=True)]
    if system is not None:
        messages.insert(0, ChatMessage(role="system", content=(system,)))
    image = PIL.Image.new("RGB", (40, 30))
    conversation = [
        {
            "role": message.role,
            "content": [
                {"type": "image", "image": image} if isinstance(each, MediaSlot) else {"type": "text", "text": each}
                for each in message.content
            ],
        }
        for message in messages
    ]
    expected = reference.apply_chat_template(conversation, add_generation_prompt=True, tokenize=True, return_dict=True)
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    layouts = [LAYOUT for message in messages for each in message.content if isinstance(each, MediaSlot)]
    assert builder.chat(messages, layouts).token_ids == list(expected["input_ids"][0])


@settings(max_examples=20)
@given(height=st.integers(1, 200), width=st.integers(1, 200), seed=st.integers(0, 99))
def test_pixels_equal_the_reference_processors(checkpoint: Path, height: int, width: int, seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    config = load_model_config(checkpoint)
    processing = family_of(config).read_media(checkpoint, config).images
    assert processing is not None
    expected = image_processor(checkpoint)(PIL.Image.fromarray(array), return_tensors="np").pixel_values[0]
    expected = np.moveaxis((expected * 0.5 + 0.5) * 255, 0, -1).round().astype(np.uint8)
    np.testing.assert_array_equal(prepare_image(PIL.Image.fromarray(array), processing).pixels, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_pan_and_scan": True}, "'do_pan_and_scan': expected false, got true"),
        ({"resample": 3}, r"'resample': expected 2 \(bilinear\), got 3"),
        ({"size": {"height": SIDE, "width": 40}}, "'size': expected the encoder's 60 pixels"),
        ({"do_normalize": False}, "'do_normalize': expected true, got False"),
    ],
)
def test_refuses_other_processing(checkpoint: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    document = json.loads((checkpoint / "preprocessor_config.json").read_text())
    write_json(tmp_path / "preprocessor_config.json", document | changes)
    config = load_model_config(checkpoint)
    with pytest.raises(ValueError, match=message):
        family_of(config).read_media(tmp_path, config)
