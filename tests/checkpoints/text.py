"""Tiny checkpoints of models that read text alone, with seeded random weights, written by transformers."""

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS, VOCAB_SIZE, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, temper_attention

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""Llama 3.1's numbers, with a smaller context window, so that all three ranges of wavelengths occur."""

EXPERTS: Mapping[str, Any] = {
    "head_dim": 32,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "norm_topk_prob": False,
    "mlp_only_layers": [0],
}
"""A dense layer, then one whose tokens are computed by three of six experts."""
QWEN3_5_TRAITS: Mapping[str, Any] = {
    # Larger weights amplify rounding in a delta net: with 0.3, over 40 seeds, logits of float32 are up to 1e-4 from
    # those of float64, also those of transformers, and once 4e-4; those of bfloat16 0.17 of their deviation.
    # In float64, prompts in chunks give the logits of whole ones to 2e-13, here and in transformers.
    "initializer_range": 0.2,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
"""Sizes of a delta net that differ from each other, and of heads that rotate in part."""
SHARED_EXPERT: Mapping[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 72,
}
"""Three of six experts, and one of another size that computes all tokens."""

LFM2_TRAITS: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 40,
}
"""Short convolutions around a layer of attention, and a width of MLPs that is not the one in the document."""

GEMMA3_TRAITS: Mapping[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 32,
    "query_pre_attn_scalar": 48,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
"""Gemma 3's layers, with a window shorter than the tests' prompts."""

GEMMA4_TRAITS: Mapping[str, Any] = {
    "initializer_range": 0.2,
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "pad_token_id": 0,
    "final_logit_softcapping": 30.0,
}
"""The layers of Gemma 4 E2B: two kinds of heads, embeddings for each layer, and layers without keys of their own."""

LARGE_GEMMA4_TRAITS: Mapping[str, Any] = {
    "initializer_range": 0.2,
    **GEMMA4_TRAITS,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
"""The layers of Gemma 4 31B: those that attend to all tokens have keys for values, in fewer heads."""

GEMMA4_EXPERTS: Mapping[str, Any] = {
    **LARGE_GEMMA4_TRAITS,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 40,
}
"""The layers of Gemma 4 26B-A4B: experts beside the MLP."""

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 16,
    "short_factor": [1 + index / 10 for index in range(8)],
    "long_factor": [1.5 + index for index in range(8)],
}
"""Scaling of Phi-3.5-mini, with a context window before the stretch that every prompt of the tests exceeds."""

PARTIAL_LONG_ROPE = LONG_ROPE | {
    "partial_rotary_factor": 0.75,
    "short_factor": [1 + index / 10 for index in range(6)],
    "long_factor": [1.5 + index for index in range(6)],
}
"""Scaling of Phi-4-mini."""

_END = len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>")
_SIZES: Mapping[str, Any] = {
    **TINY_DECODER,
    "max_position_embeddings": 512,
    "eos_token_id": _END,
    "bos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.3,
}


@cache
def _models() -> tuple[Mapping[str, Any], torch.Tensor]:
    """Returns models with weights of one sequence of random numbers, and where in it the next ones begin."""
    torch.manual_seed(0)
    models: dict[str, Any] = {
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**_SIZES)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32)),
        "llama3": LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=LLAMA3_ROPE)),
        "linear rope": LlamaForCausalLM(
            LlamaConfig(**_SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0})
        ),
        "smollm2": LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True)),
        "mistral": MistralForCausalLM(MistralConfig(**_SIZES, head_dim=32, sliding_window=None)),
        "phi3": Phi3ForCausalLM(Phi3Config(**_SIZES, sliding_window=None)),
        "gemma3": Gemma3ForCausalLM(Gemma3TextConfig(**{**_SIZES, **GEMMA3_TRAITS})),
        "phi3 128k": Phi3ForCausalLM(Phi3Config(**_SIZES, rope_parameters=dict(LONG_ROPE))),
        "phi4 mini": Phi3ForCausalLM(
            Phi3Config(**_SIZES, rope_parameters=dict(PARTIAL_LONG_ROPE), tie_word_embeddings=True)
        ),
    }
    with torch.random.fork_rng(devices=[]):  # those above keep the weights that they had before these
        models |= {
            "qwen3 moe": Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SIZES, **EXPERTS)),
            "qwen3_5": Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**_SIZES, **QWEN3_5_TRAITS})),
            "gemma4": Gemma4ForCausalLM(Gemma4TextConfig(**{**_SIZES, **GEMMA4_TRAITS})),
            "gemma4 large": Gemma4ForCausalLM(Gemma4TextConfig(**{**_SIZES, **LARGE_GEMMA4_TRAITS})),
            "gemma4 moe": Gemma4ForCausalLM(Gemma4TextConfig(**{**_SIZES, **GEMMA4_EXPERTS})),
            "qwen3_5 moe": Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**_without_mlp(QWEN3_5_TRAITS), **SHARED_EXPERT)),
            "lfm2": Lfm2ForCausalLM(Lfm2Config(**{**_SIZES, **LFM2_TRAITS})),
        }
    return models, torch.get_rng_state()


FAMILIES = (
    "qwen2",
    "qwen3",
    "qwen3 moe",
    "llama3",
    "linear rope",
    "smollm2",
    "mistral",
    "phi3",
    "phi3 128k",
    "phi4 mini",
    "gemma3",
    "qwen3_5",
    "gemma4",
    "gemma4 large",
    "gemma4 moe",
    "qwen3_5 moe",
    "lfm2",
)


def _without_mlp(traits: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**_SIZES, **traits}.items() if name != "intermediate_size"}


def make_text_checkpoint(path: Path, family: str) -> Path:
    """Writes a checkpoint of a family into the folder `path` and returns it."""
    models, random_numbers = _models()
    model = deepcopy(models[family]).float()
    torch.set_rng_state(random_numbers)
    _draw_norms_and_biases(model)
    model.save_pretrained(path)
    return write_files(
        path, make_tokenizer(), tokenizer_config={"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    )


def _draw_norms_and_biases(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):  # 1 by default, which would hide a norm that is left out
                parameter.uniform_(0.5, 1.5)
                if type(model).__name__.startswith("Qwen3_5") and "linear_attn" not in name:
                    parameter.sub_(1)  # how it is stored
            elif name.endswith(".bias"):
                parameter.normal_(std=0.3)
            elif name.endswith("linear_attn.out_proj.weight"):
                parameter.mul_(0.5)  # delta nets magnify what is rounded
        temper_attention(model)
        if type(model).__name__.startswith("Gemma4"):
            temper(model)


def temper(model: torch.nn.Module) -> None:
    """Draws the factors and the numbered norms of Gemma 4's layers. Scores of attention, which have no factor, are
    small: rounding must not be magnified.

    With experts, logits after 60 prompts in bfloat16 are a median of 0.030 of their deviation from float32's, and 7 of
    them 0.1 to 0.32; transformers' own 0.028, and 5 of them 0.1 to 0.38: rounding exchanges experts."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("q_norm.weight"):
                tensor.mul_(0.25)
            elif name.endswith(("layernorm_1.weight", "layernorm_2.weight")):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("router.scale"):  # so large that the experts of a token differ in weight
                tensor.uniform_(4, 12)
            elif name.endswith(("layer_scalar", "per_expert_scale")):
                tensor.uniform_(0.5, 1.5)


def make_embedding_checkpoint(
    path: Path,
    *,
    pooling: str = "lasttoken",
    normalize: bool = True,
    architecture: str = "Qwen3ForCausalLM",
    tied: bool = True,
) -> Path:
    """Writes a checkpoint as Qwen3-Embedding is published, into the folder `path`, and returns it.

    The decoder is saved without its output head, the tokenizer ends each text with <|endoftext|>, and the files of
    sentence-transformers say how hidden states are pooled.
    """
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32, tie_word_embeddings=tied)).float()
    _draw_norms_and_biases(model)
    model.model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    tokenizer = make_tokenizer()
    end = "<|endoftext|>"
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=None, special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    write_files(
        path,
        tokenizer,
        config=config | {"architectures": [architecture]},
        tokenizer_config={"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
    )
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **({"2_Normalize": "Normalize"} if normalize else {})}
    write_json(
        path / "modules.json",
        [
            {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{kind}"}
            for index, (folder, kind) in enumerate(kinds.items())
        ],
    )
    (path / "1_Pooling").mkdir(exist_ok=True)
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    write_json(
        path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 64, **{f"pooling_mode_{mode}": mode == pooling for mode in modes}},
    )
    return path


RERANKER_TEMPLATE = CHAT_TEMPLATE.rstrip() + (
    "{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
)
"""Qwen3's way of telling a model not to reason."""


def make_reranker_checkpoint(path: Path) -> Path:
    """Writes a checkpoint as Qwen3-Reranker is published, with tokens for "yes" and "no", and returns its folder."""
    make_text_checkpoint(path, "qwen3")
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"ye": 300, "yes": 301, "no": 302}
    tokenizer["model"]["merges"] += [["y", "e"], ["ye", "s"], ["n", "o"]]
    write_json(path / "tokenizer.json", tokenizer)
    write_json(path / "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": RERANKER_TEMPLATE})
    return path


def make_wide_checkpoint(folder: Path) -> Path:
    """Writes a Llama whose rows are wide enough for blocks of 256 values."""
    checkpoint = make_text_checkpoint(folder, "smollm2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            eos_token_id=None,
            bos_token_id=None,
        )
        LlamaForCausalLM(config).save_pretrained(checkpoint)
    return checkpoint
