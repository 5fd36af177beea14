"""`LLM.embed`: embeddings equal transformers' hidden states, whatever they are computed together with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.offline.llm import LLM, EmbeddingOutput, InputError, SamplingParams
from tests.checkpoints.text import make_embedding_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.media.images import noise_pixels
from tests.oracles.pooling import image_states, pooled, text_states

TOLERANCE = 1e-5
TEXTS = ["the", "the sea is red in winter and the sky is grey", "a", "the thing is on the other one " * 20, "an inn"]
IMAGE_TOKEN_ID = 277
MEAN = PoolingParams(mode=PoolingMode.MEAN)


def assert_equal(outputs: Sequence[EmbeddingOutput], expected: Sequence[np.ndarray]) -> None:
    for output, own in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output.embedding, own, atol=TOLERANCE)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_embedding_checkpoint(tmp_path_factory.mktemp("checkpoints") / "embedding")


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return load(path, max_batch_tokens=48)  # long prompts are computed in chunks


@pytest.fixture(scope="module")
def vision(tiny_checkpoint: Path) -> LLM:
    return load(tiny_checkpoint, max_batch_tokens=48)


def test_a_batch_of_texts_equals_the_reference(llm: LLM, path: Path) -> None:
    outputs = llm.embed(TEXTS, progress=False)
    assert_equal(outputs, [pooled(text_states(path, each.prompt_token_ids), PoolingParams()) for each in outputs])
    assert all(np.linalg.norm(output.embedding) == pytest.approx(1, abs=1e-6) for output in outputs)


def test_texts_end_as_the_tokenizer_says(llm: LLM) -> None:
    (marked,) = llm.embed("the")
    (bare,) = llm.embed("the", add_special_tokens=False)
    end = 256 + 15  # <|endoftext|>
    assert marked.prompt_token_ids == [*bare.prompt_token_ids, end]
    (written,) = llm.embed("the<|endoftext|>")
    assert written.prompt_token_ids == marked.prompt_token_ids


def test_a_mean_counts_all_tokens_of_all_chunks(llm: LLM, path: Path) -> None:
    first = llm.embed(TEXTS, pooling="mean", progress=False)
    assert_equal(first, [pooled(text_states(path, each.prompt_token_ids), MEAN) for each in first])
    again = llm.embed(TEXTS, pooling="mean", progress=False)
    assert_equal(again, [each.embedding for each in first])
    assert [each.num_cached_tokens for each in again] == [0] * len(TEXTS)


def test_the_last_token_needs_only_what_is_not_cached(llm: LLM) -> None:
    (first,) = llm.embed("one in a thousand things " * 20)
    (again,) = llm.embed("one in a thousand things " * 20)
    assert again.num_cached_tokens > 200
    assert_equal([again], [first.embedding])


def test_cuts_embeddings_before_normalizing_them(llm: LLM, path: Path) -> None:
    (output,) = llm.embed("the sea", dimensions=8)
    assert_equal([output], [pooled(text_states(path, output.prompt_token_ids), PoolingParams(dimensions=8))])
    (raw,) = llm.embed("the sea", dimensions=8, normalize=False)
    assert_equal([raw], [pooled(text_states(path, raw.prompt_token_ids), PoolingParams(dimensions=8, normalize=False))])
    assert output.embedding.shape == raw.embedding.shape == (8,)


def test_embeddings_leave_the_engine_ready_for_answers(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=4)
    (before,) = llm.generate("the", greedy)
    llm.embed(TEXTS, progress=False)
    (after,) = llm.generate("the", greedy)
    assert before.outputs == after.outputs


def test_token_ids_are_embedded_as_they_are(llm: LLM, path: Path) -> None:
    (output,) = llm.embed({"prompt_token_ids": [5, 6, 7]})
    assert output.prompt_token_ids == [5, 6, 7]
    assert_equal([output], [pooled(text_states(path, [5, 6, 7]), PoolingParams())])


@pytest.mark.parametrize("mode", [PoolingMode.LAST_TOKEN, PoolingMode.MEAN])
def test_images_of_conversations_equal_the_reference(vision: LLM, tiny_checkpoint: Path, mode: PoolingMode) -> None:
    pixels = [noise_pixels(84, 112, 1), noise_pixels(56, 56, 2)]  # which need no resizing
    parts = [image_pil(PIL.Image.fromarray(each)) for each in pixels]
    prompts = [
        {"messages": user(parts[0], text("the"), parts[1], text(" sea"))},
        "no image",
        {"messages": user(parts[1]), "add_generation_prompt": True},
    ]
    outputs = vision.embed(prompts, pooling=mode.value, progress=False)
    params = PoolingParams(mode=mode)
    tokens = [each.prompt_token_ids for each in outputs]
    expected = [
        pooled(image_states(tiny_checkpoint, tokens[0], pixels, IMAGE_TOKEN_ID), params),
        pooled(image_states(tiny_checkpoint, tokens[2], pixels[1:], IMAGE_TOKEN_ID), params),
    ]
    assert_equal([outputs[0], outputs[2]], expected)


def test_images_of_prompts_equal_those_of_conversations(vision: LLM) -> None:
    own = PIL.Image.fromarray(noise_pixels(56, 84, 3))
    (chat,) = vision.embed({"messages": user(image_pil(own), text("the"))})
    prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>the<|im_end|>\n"
    (plain,) = vision.embed({"prompt": prompt, "multi_modal_data": {"image": own}})
    assert plain.prompt_token_ids == chat.prompt_token_ids
    assert_equal([plain], [chat.embedding])


def test_the_checkpoint_says_how_to_pool(tmp_path: Path) -> None:
    path = make_embedding_checkpoint(tmp_path / "mean", pooling="mean_tokens", normalize=False)
    outputs = load(path).embed(TEXTS[:2], progress=False)
    params = PoolingParams(mode=PoolingMode.MEAN, normalize=False)
    assert_equal(outputs, [pooled(text_states(path, each.prompt_token_ids), params) for each in outputs])


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        pytest.param("a", {"dimensions": 65}, r"^'dimensions': expected at most 64, .*got 65$", id="dimensions"),
        pytest.param("a", {"dimensions": 0}, "^'dimensions': expected an integer of at least 1", id="no dimension"),
        pytest.param(
            "a",
            {"pooling": "cls"},
            "^'pooling': expected one of 'last_token', 'mean', 'token', got 'cls'$",
            id="pooling",
        ),
        pytest.param(
            "a", {"pooling": "token"}, "^'pooling': expected last_token or mean, as the model is not", id="token"
        ),
        pytest.param({"text": "a"}, {}, r"^'prompts\[0\]\.text': unknown field", id="unknown field"),
        pytest.param({"messages": "a"}, {}, r"^'prompts\[0\]\.messages': expected an array", id="messages"),
        pytest.param(
            {"messages": user(text("a")), "tools": []}, {}, r"^'prompts\[0\]\.tools': unknown field", id="tools"
        ),
    ],
)
def test_errors_name_the_field(llm: LLM, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.embed(prompt, **options)


def test_a_prompt_may_fill_the_context_window_but_not_exceed_it(llm: LLM) -> None:
    (output,) = llm.embed({"prompt_token_ids": [5] * 512})
    assert len(output.prompt_token_ids) == 512
    with pytest.raises(EngineError, match=r"^'prompts\[0\]': the prompt has 513 tokens") as failure:
        llm.embed({"prompt_token_ids": [5] * 513})
    assert failure.value.code is EngineErrorCode.PROMPT_TOO_LONG


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
def test_a_checkpoint_without_an_output_head_makes_embeddings_only(tmp_path: Path, architecture: str) -> None:
    path = make_embedding_checkpoint(tmp_path / "headless", architecture=architecture, tied=False)
    headless = load(path)
    outputs = headless.embed(TEXTS[:2], progress=False)
    assert_equal(outputs, [pooled(text_states(path, each.prompt_token_ids), PoolingParams()) for each in outputs])
    with pytest.raises(EngineError, match="the model has no output head") as failure:
        headless.generate("the")
    assert failure.value.code is EngineErrorCode.UNSUPPORTED
