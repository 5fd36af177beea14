"""Phi-3.5-vision in the offline API: images of any size become the reference's tiles, prompts and answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.phi3v import MAX_TILES, SIDE, make_phi3v_checkpoint
from tests.engine.offline.llm_inputs import base64_png, image_pil, load, text, user
from tests.media.images import scene
from tests.oracles.phi3v import encode, greedy_answer, hidden_states, prompt_ids, tagged_ids, tiles_of
from tests.oracles.pooling import pooled

CHECKPOINT = make_phi3v_checkpoint
OPTIONS = {"enable_mm_embeds": True}
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
URL = f"data:image/png;base64,{base64_png(scene(9, 9))}"


def test_answers_images_like_the_reference(llm: LLM, checkpoint: Path) -> None:
    images = [scene(200, 61, 1), scene(21, 20, 2), scene(301, 137, 3)]
    messages = user(image_pil(images[0]), text("the"), image_pil(images[1]), image_pil(images[2]), text("in"))
    (output,) = llm.chat(messages, GREEDY)
    reference = user({"type": "image"}, text("the"), {"type": "image"}, {"type": "image"}, text("in"))
    tiles = [tiles_of(image, side=SIDE, most=MAX_TILES) for image in images]
    assert output.prompt_token_ids == prompt_ids(checkpoint, reference, tiles, side=SIDE)
    assert output.outputs[0].token_ids == greedy_answer(checkpoint, output.prompt_token_ids, tiles, 10).token_ids


def test_prompts_of_texts_hold_numbered_tags(llm: LLM) -> None:
    images = [scene(50, 70), scene(70, 50)]
    (chatted,) = llm.chat(user(image_pil(images[0]), image_pil(images[1]), text("the")), GREEDY)
    prompt = "<|user|>\n<|image_1|>\n<|image_2|>\nthe<|end|>\n<|assistant|>\n"
    (completed,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": images}}, GREEDY)
    assert completed.prompt_token_ids == chatted.prompt_token_ids
    assert completed.outputs == chatted.outputs


def test_embeddings_replace_an_image(llm: LLM, checkpoint: Path) -> None:
    image = scene(90, 70)
    rows = encode(checkpoint, tiles_of(image, side=SIDE, most=MAX_TILES)).numpy()
    embeds = {"image_embeds": rows}
    (given,) = llm.chat(user({"type": "image_embeds", "image_embeds": embeds}, text("the")), GREEDY)
    (expected,) = llm.chat(user(image_pil(image), text("the")), GREEDY)
    assert given.prompt_token_ids == expected.prompt_token_ids
    assert given.outputs[0].token_ids == expected.outputs[0].token_ids


VLM2VEC_TEMPLATE = """\
{%- set state = namespace(texts=[], number=0) -%}
{%- for part in messages[0].content -%}
{%- if part.type == 'image' -%}
{%- set state.number = state.number + 1 -%}
{%- set state.texts = state.texts + ['<|image_{:d}|>'.format(state.number)] -%}
{%- else -%}
{%- set state.texts = state.texts + [part.text] -%}
{%- endif -%}
{%- endfor -%}
{{- state.texts | join(' ') -}}
"""
"""A prompt of VLM2Vec on Phi-3.5-vision (arXiv 2410.05160): a tag, and the text after a space."""


def test_embeds_images_with_the_prompts_of_vlm2vec(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text(VLM2VEC_TEMPLATE)
    embedder = load(checkpoint, chat_template=str(tmp_path / "template.jinja"))
    image = scene(90, 70)
    (output,) = embedder.embed({"messages": user(image_pil(image), text("the image in words"))})
    tiles = [tiles_of(image, side=SIDE, most=MAX_TILES)]
    assert output.prompt_token_ids == tagged_ids(checkpoint, "<|image_1|> the image in words", tiles, side=SIDE)
    expected = pooled(hidden_states(checkpoint, output.prompt_token_ids, tiles), PoolingParams())
    np.testing.assert_allclose(output.embedding, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "max_pixels": 10_000}}, "max_pixels.*the model decides"),
        ({"type": "video", "video": [scene(9, 9)]}, "does not support video"),
        (image_pil(scene(402, 1)), "too elongated for the model, got 402×1 pixels"),
    ],
    ids=["bounds", "video", "elongated"],
)
def test_refuses_by_name_what_it_does_not_support(llm: LLM, part: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        llm.chat(user(part), GREEDY)
