"""The embedded checkpoint is what its card says: small, marked as untrained, and readable by transformers as it is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

from engine.checkpoint import DEFAULT_MODEL, is_untrained
from engine.llm import LLM
from engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=16)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", device="cpu", kv_cache_bytes=16 << 20, max_model_len=2048, num_threads=1)


def picture(seed: int) -> PIL.Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    return PIL.Image.fromarray(pixels)


def conversation(question: str, image: PIL.Image.Image | None = None) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if image is not None:
        parts.insert(0, {"type": "image_pil", "image_pil": image})
    return [{"role": "user", "content": parts}]


def test_it_is_small_and_marked_as_untrained() -> None:
    assert is_untrained(DEFAULT_MODEL)
    assert sum(file.stat().st_size for file in DEFAULT_MODEL.iterdir()) <= 4_000_000


def test_answers_differ_between_pictures_and_between_questions(llm: LLM) -> None:
    outputs = llm.chat(
        [
            conversation("What is this?", picture(0)),
            conversation("What is this?", picture(1)),
            conversation("Who are you?", picture(0)),
            conversation("What is this?"),
        ],
        GREEDY,
    )
    texts = [output.outputs[0].text for output in outputs]
    assert len(set(texts)) == len(texts)
    assert all(text.isascii() and text.strip() for text in texts)


def test_transformers_generates_the_same_tokens(llm: LLM) -> None:
    (output,) = llm.chat(conversation("What is this?"), GREEDY)
    model: Any = Qwen2VLForConditionalGeneration.from_pretrained(DEFAULT_MODEL, dtype=torch.float32)
    prompt = torch.tensor([output.prompt_token_ids])
    generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=16)
    assert generated[0, len(output.prompt_token_ids) :].tolist() == output.outputs[0].token_ids


def test_transformers_makes_the_same_prompt(llm: LLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    template = json.loads((DEFAULT_MODEL / "chat_template.json").read_text())["chat_template"]
    question = "Where's the    naïve café? 12345\n\n  😀"
    expected = tokenizer.apply_chat_template(
        conversation(question), chat_template=template, add_generation_prompt=True, return_dict=False
    )
    (output,) = llm.chat(conversation(question), GREEDY)
    assert output.prompt_token_ids == expected
    assert tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=True) == output.outputs[0].text


def test_the_script_tells_how_it_is_used() -> None:
    script = Path(DEFAULT_MODEL).parent / "make_random.py"
    result = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "--seed" in result.stdout
