"""Tiny checkpoints of models that read text alone, with seeded random weights, written by transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.checkpoints import CHAT_TEMPLATE, PLAIN_TOKENS, SPECIAL_TOKENS, VOCAB_SIZE, make_tokenizer, write_json

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""Llama 3.1's numbers, with a smaller context window, so that all three ranges of wavelengths occur."""

_END = len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>")
_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": _END,
    "bos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.3,
}


def _models() -> Mapping[str, Any]:
    return {
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**_SIZES)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32)),
        "llama3": LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=LLAMA3_ROPE)),
        "linear rope": LlamaForCausalLM(
            LlamaConfig(**_SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0})
        ),
        "smollm2": LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True)),
        "mistral": MistralForCausalLM(MistralConfig(**_SIZES, head_dim=32, sliding_window=None)),
        "phi3": Phi3ForCausalLM(Phi3Config(**_SIZES, sliding_window=None)),
    }


FAMILIES = ("qwen2", "qwen3", "llama3", "linear rope", "smollm2", "mistral", "phi3")


def make_text_checkpoint(path: Path, family: str) -> Path:
    """Writes a checkpoint of a family into the folder `path` and returns it."""
    torch.manual_seed(0)
    model = _models()[family].float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # 1 by default, which would hide a norm that is left out
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(".bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(path)
    make_tokenizer().save(str(path / "tokenizer.json"))
    write_json(path / "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE})
    return path
