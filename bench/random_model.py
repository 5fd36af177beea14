"""Models with random weights: the tokenizer, the files and the tensors of Qwen2-VL and Qwen3 in their published layout.

Answers are readable but meaningless. They differ between images and between questions.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from glimpse.engine.checkpoint.families.reading.chatml import QWEN2_VL_TEMPLATE
from glimpse.engine.checkpoint.location import UNTRAINED_MARK
from models.family import SPECIAL_TOKENS, WORDS, common_config, tokenizer_config

Normal: TypeAlias = Callable[[Sequence[int]], torch.Tensor]
"""Draws a float32 tensor of a shape from the standard normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's sizes."""

    text: Mapping[str, Any]
    """The decoder's, in the words of `config.json`, and what a family other than Qwen2-VL says otherwise there."""
    vision: Mapping[str, Any] | None
    """The vision tower's, in the words of `vision_config`; None: the model reads text alone."""


PREPROCESSOR = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "max_pixels": 1003520,
    "merge_size": 2,
    "min_pixels": 3136,
    "patch_size": 14,
    "processor_class": "Qwen2VLProcessor",
    "temporal_patch_size": 2,
}


def train_tokenizer(texts: Iterable[str], num_tokens: int) -> Tokenizer:
    """Trains a byte-level BPE like Qwen2's with `num_tokens` tokens, the special ones last."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=num_tokens - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def write_metadata(path: Path, shape: Shape, tokenizer: Tokenizer) -> None:
    """Writes all of a checkpoint except its weights into the folder `path`, creating it if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    ids = _special_ids(tokenizer)
    _write_json(path / "config.json", _config(ids, shape))
    _write_json(path / "generation_config.json", _generation_config(ids))
    if shape.vision is not None:
        _write_json(path / "preprocessor_config.json", PREPROCESSOR)
    _write_json(path / "tokenizer_config.json", tokenizer_config(ids, shape.text["max_position_embeddings"]))
    _write_json(path / "chat_template.json", {"chat_template": QWEN2_VL_TEMPLATE})


def readable_ids(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of readable tokens."""
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size())}
    return [token_id for token_id, text in texts.items() if text and text.isascii() and text.isprintable()]


def weights(shape: Shape, normal: Normal, visible_ids: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields all tensors, in float32, by their names in published checkpoints.

    The gains let attention outweigh the last token, so that an answer depends on the whole prompt.

    Args:
        shape: of the model.
        normal: draws them.
        visible_ids: tokens that an answer is made of; all others have small logits.
    """
    yield from _decoder(normal, shape.text, visible_ids)
    if shape.vision is not None:
        yield from _vision_tower(normal, shape.vision)


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: token_id for token, token_id in tokenizer.get_vocab().items() if token in SPECIAL_TOKENS}


def _config(ids: dict[str, int], shape: Shape) -> dict[str, Any]:
    vision = {} if shape.vision is None else {"vision_config": shape.vision}
    return {**common_config(ids), UNTRAINED_MARK: True, **shape.text, **vision}


def _generation_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _decoder(normal: Normal, text: Mapping[str, Any], visible_ids: Sequence[int]) -> Iterator[tuple[str, torch.Tensor]]:
    hidden, middle, num_experts = text["hidden_size"], text["intermediate_size"], text.get("num_experts", 0)
    head_dim = text["head_dim"]
    queries, keys = (text[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    has_norms = text.get("model_type") in ("qwen3", "qwen3_moe")  # of heads, instead of biases
    scale = torch.full((text["vocab_size"], 1), 0.02)  # what cannot be read has small logits
    scale[list(visible_ids)] = 0.5
    yield "model.embed_tokens.weight", normal((text["vocab_size"], hidden)) * scale
    for layer in (f"model.layers.{index}" for index in range(text["num_hidden_layers"])):
        yield f"{layer}.input_layernorm.weight", torch.ones(hidden)
        yield from _linear(normal, f"{layer}.self_attn.q_proj", queries, hidden, gain=2, bias=not has_norms)
        yield from _linear(normal, f"{layer}.self_attn.k_proj", keys, hidden, gain=2, bias=not has_norms)
        yield from _linear(normal, f"{layer}.self_attn.v_proj", keys, hidden, bias=not has_norms)
        if has_norms:
            yield from ((f"{layer}.self_attn.{each}_norm.weight", torch.full((head_dim,), 2.0)) for each in "qk")
        yield from _linear(normal, f"{layer}.self_attn.o_proj", hidden, queries, gain=4, bias=False)
        yield f"{layer}.post_attention_layernorm.weight", torch.ones(hidden)
        mlps, width = [f"{layer}.mlp"], middle
        if num_experts:
            yield from _linear(normal, f"{layer}.mlp.gate", num_experts, hidden, bias=False)
            mlps, width = (
                [f"{layer}.mlp.experts.{index}" for index in range(num_experts)],
                text["moe_intermediate_size"],
            )
        for mlp in mlps:
            yield from _linear(normal, f"{mlp}.gate_proj", width, hidden, bias=False)
            yield from _linear(normal, f"{mlp}.up_proj", width, hidden, bias=False)
            yield from _linear(normal, f"{mlp}.down_proj", hidden, width, gain=2, bias=False)
    yield "model.norm.weight", torch.ones(hidden)
    if not text.get("tie_word_embeddings", True):
        yield "lm_head.weight", normal((text["vocab_size"], hidden)) * scale


def _vision_tower(normal: Normal, vision: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    width, merged = vision["embed_dim"], vision["embed_dim"] * vision["spatial_merge_size"] ** 2
    patch = (vision["in_chans"], vision["temporal_patch_size"], vision["patch_size"], vision["patch_size"])
    embedding = normal((width, *patch)) / math.sqrt(math.prod(patch))
    yield "visual.patch_embed.proj.weight", embedding
    for block in (f"visual.blocks.{index}" for index in range(vision["depth"])):
        yield from _layer_norm(f"{block}.norm1", width)
        yield from _linear(normal, f"{block}.attn.qkv", 3 * width, width, gain=2)
        yield from _linear(normal, f"{block}.attn.proj", width, width)
        yield from _layer_norm(f"{block}.norm2", width)
        yield from _linear(normal, f"{block}.mlp.fc1", vision["mlp_ratio"] * width, width)
        yield from _linear(normal, f"{block}.mlp.fc2", width, vision["mlp_ratio"] * width)
    yield from _layer_norm("visual.merger.ln_q", width)
    yield from _linear(normal, "visual.merger.mlp.0", merged, merged)
    yield from _linear(normal, "visual.merger.mlp.2", vision["hidden_size"], merged)


def _linear(
    normal: Normal, name: str, rows: int, columns: int, *, gain: float = 1.0, bias: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", normal((rows, columns)) * gain / math.sqrt(columns)
    if bias:
        yield f"{name}.bias", normal((rows,)) * 0.1


def _layer_norm(name: str, width: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{name}.weight", torch.ones(width)
    yield f"{name}.bias", torch.zeros(width)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
