"""The embedded checkpoint is as its model card describes, and gives the same answers in transformers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from glimpse import SamplingParams
from glimpse.engine.checkpoint.location import DEFAULT_MODEL, is_untrained
from glimpse.engine.protocol.config import EngineConfig, Quantization
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.offline.llm import LLM
from glimpse.offline.run import run_batch
from models.training.batching.prompts import make_prompt
from models.training.batching.vocabulary import load_vocabulary
from models.training.evaluate import EXAMS, evaluate, request
from models.training.mix import draw_sample
from models.training.sample import SampleImage
from tests.e2e.scenes import scene
from tests.oracles.qwen_vl import greedy_answer

LARGEST_BYTES = 20_000_000
NUM_TOKENS = 24


def test_checkpoint_is_small_and_trained() -> None:
    assert not is_untrained(DEFAULT_MODEL)
    assert sum(file.stat().st_size for file in DEFAULT_MODEL.iterdir()) <= LARGEST_BYTES


def test_model_card_lists_the_score_of_every_task() -> None:
    scores = json.loads((DEFAULT_MODEL / "scores.json").read_text(encoding="utf-8"))["tasks"]
    card = (DEFAULT_MODEL / "README.md").read_text(encoding="utf-8")
    assert set(scores) == set(EXAMS)
    for task, counts in scores.items():
        assert counts["samples"] >= 500
        assert f"| {task.replace('_', ' ')} | {counts['right'] / counts['samples']:.1%} |" in card


def test_greedy_answers_match_transformers() -> None:
    vocabulary, rng = load_vocabulary(DEFAULT_MODEL), random.Random(11)
    samples = [
        draw_sample(task, rng, held_out=True, largest_side=168)
        for task in ("describe", "count", "read", "two_images", "motion", "follow_up", "json", "tool", "small_talk")
    ]
    prompts = [
        make_prompt(sample.turns[:-1], vocabulary, task=sample.task, tools=sample.tools, answering=True)
        for sample in samples
    ]
    config = EngineConfig(model_path=str(DEFAULT_MODEL), dtype="float32", num_threads=1, kv_cache_bytes=16 << 20)
    engine = load_core(config, on_progress=lambda _stage, _part: None)
    requests = [request(prompt, str(index), max_tokens=NUM_TOKENS) for index, prompt in enumerate(prompts)]
    outputs = run_batch(engine.core, requests, vocabulary.tokenizer, progress=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        pixels = [medium.pixels if isinstance(medium, SampleImage) else medium.frames for medium in prompt.media]
        expected = greedy_answer(DEFAULT_MODEL, prompt.token_ids.tolist(), prompt.spans, pixels, NUM_TOKENS)
        answer = output.outputs[0].token_ids
        assert answer == expected.token_ids[: len(answer)]


def test_chat_prompt_matches_transformers() -> None:
    llm = LLM(dtype="float32", device="cpu", kv_cache_bytes=16 << 20, max_model_len=2048, num_threads=1)
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    question = "Where's the    naïve café? 12345\n\n  😀"
    conversation: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": question}]}]
    expected = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    (output,) = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=4))
    assert output.prompt_token_ids == expected
    assert AutoConfig.from_pretrained(DEFAULT_MODEL).model_type == "qwen2_vl"


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_describes_an_image_correctly(quantization: Quantization) -> None:
    llm = LLM(device="cpu", kv_cache_bytes=16 << 20, num_threads=1, quantization=quantization)
    image = {"type": "image_pil", "image_pil": scene(("red", "circle", (0.5, 0.5), 0.5))}
    question = {"type": "text", "text": "What is in this image?"}
    (output,) = llm.chat([{"role": "user", "content": [image, question]}], SamplingParams(temperature=0, max_tokens=48))
    assert "red circle" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


def test_json_of_a_schema_that_the_question_does_not_mention_is_true() -> None:
    (score,) = evaluate(DEFAULT_MODEL, ["schema_of_one"], 20, num_threads=1)
    assert score.num_right >= 14, score.wrong


def test_tokenizer_encodes_any_text() -> None:
    tokenizer = load_vocabulary(Path(DEFAULT_MODEL)).tokenizer
    for text in ("Zürich, 東京, \x00\x7f, 👩‍👩‍👧", bytes(range(256)).decode("latin-1")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_weights_are_bfloat16() -> None:
    model: Any = AutoConfig.from_pretrained(DEFAULT_MODEL)
    assert model.dtype is torch.bfloat16
