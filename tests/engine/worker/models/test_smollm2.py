"""A published checkpoint, SmolLM2-135M-Instruct in GGUF's Q4_1, answers as transformers does."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from tests.checkpoints.corpus import corpus
from tests.checkpoints.gguf import dequantized
from tests.checkpoints.smollm2 import SMOLLM2, needs_smollm2
from tests.engine.harness import Harness, Prompt, ScriptedSequence

pytestmark = needs_smollm2

CONFIG = {  # as published
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
NUM_TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time",
    "The three primary colours are",
    "Water boils at",
    "import numpy as np\n\ndef mean(values):",
    "To make a cup of tea, first",
    "<|im_start|>user\nName three planets.<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.fixture(scope="module")
def oracle() -> Any:
    rope = {"rope_type": "default", "rope_theta": 100_000.0}
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, rope_parameters=rope, bos_token_id=1, eos_token_id=2)).eval()
    names = [name for name in model.state_dict() if name != "lm_head.weight"]  # it is that of the embedding
    model.load_state_dict(dequantized(SMOLLM2, CONFIG, "llama", names), strict=False)
    return model


@pytest.fixture(scope="module")
def answers() -> Mapping[str, ScriptedSequence]:
    """Greedy answers to all prompts, computed in one batch."""
    path = resolve_checkpoint(str(SMOLLM2))
    harness, tokenizer = Harness(path, keeps_blocks=False), load_tokenizer(path)
    sequences = {text: harness.begin(Prompt(token_ids=tuple(tokenizer.encode(text)))) for text in PROMPTS}
    harness.step(*((each, len(each.prompt.token_ids)) for each in sequences.values()))
    for _ in range(NUM_TOKENS - 1):
        harness.step(*((each, 1) for each in sequences.values()))
    return sequences


@pytest.mark.parametrize("text", PROMPTS)
def test_answers_agree_with_transformers(answers: Mapping[str, ScriptedSequence], oracle: Any, text: str) -> None:
    answered = answers[text]
    with torch.inference_mode():
        expected = oracle(torch.tensor([answered.token_ids[:-1]])).logits[0, -NUM_TOKENS:]
    # A greedy answer of transformers too: each token is the likeliest after those before it.
    assert answered.answer == expected.argmax(-1).tolist()
    assert (torch.stack(answered.logits) - expected).abs().max() <= 1e-3


def test_configuration_is_the_published_one() -> None:
    path = resolve_checkpoint(str(SMOLLM2))
    config = json.loads((path / "config.json").read_bytes())
    assert {name: config[name] for name in CONFIG} == CONFIG
    model = load_model_config(path)
    assert (model.text.rope_theta, model.dtype, set(model.eos_token_ids)) == (100_000.0, "bfloat16", {0, 2})


def test_tokens_are_those_of_the_published_tokenizer() -> None:
    """Digits stand alone, then GPT-2's words follow: as in the published `tokenizer.json`."""
    path = resolve_checkpoint(str(SMOLLM2))
    made = Tokenizer.from_file(str(path / "tokenizer.json"))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    made.decoder = decoders.ByteLevel()
    assert load_tokenizer(path).encode(corpus()) == made.encode(corpus(), add_special_tokens=False).ids
