"""Tiny Qwen2-VL checkpoints with seeded random weights, in the format of the published ones. Knows no transformers.

The weights are scaled so that answers are readable ASCII that depends on the whole prompt, pictures included. Tokens that
such an answer does not contain (special ones, end tokens among them) have small logits: reach them with `logit_bias`.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "o n", "r e", "e r", "o u", "Ġ a", "i s", "Ġ is", "i m", "a g", "Ġ w")
VOCAB_SIZE = 384
"""Rows of the embedding table: more than the tokenizer has tokens, as in the published checkpoints."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type in ('image', 'image_url') -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type in ('video', 'video_url') -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif 'text' in part -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def make_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    hidden: int = 64,
    layers: int = 2,
    tied: bool = True,
    nested_layout: bool = False,
    max_position_embeddings: int = 4096,
) -> Path:
    """Writes a checkpoint into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        seed: of the weights.
        dtype: of the stored weights, "float32" or "bfloat16".
        hidden: width of the decoder, a multiple of 64; it has 4 query heads and 2 key-value heads.
        layers: of the decoder; the vision tower always has 2 of width 32.
        tied: the output head is the embedding table.
        nested_layout: config.json and tensor names as transformers 5 has them in memory instead of the published flat ones.
        max_position_embeddings: the context window.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    token_ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    text = _text_config(hidden, layers, max_position_embeddings)
    common = _common_config(dtype, tied, token_ids)
    config = common | {"text_config": _nested(text)} if nested_layout else common | text
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", _generation_config(token_ids))
    _write_json(path / "preprocessor_config.json", _preprocessor_config())
    _write_json(path / "tokenizer_config.json", _tokenizer_config())
    weights = _weights(seed, hidden, layers, tied, _readable_token_ids(tokenizer))
    renamed = {_nested_name(name) if nested_layout else name: tensor for name, tensor in weights}
    stored = {name: tensor.to(getattr(torch, dtype)).contiguous() for name, tensor in renamed.items()}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE with a handful of merges and Qwen's special tokens."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _readable_token_ids(tokenizer: Tokenizer) -> list[int]:
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(tokenizer.get_vocab_size())}
    return [token_id for token_id, text in texts.items() if text.isascii() and text.isprintable() and text]


def _common_config(dtype: str, tied: bool, token_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "torch_dtype": dtype,
        "tie_word_embeddings": tied,
        "bos_token_id": token_ids["<|endoftext|>"],
        "eos_token_id": token_ids["<|im_end|>"],
        "vision_start_token_id": token_ids["<|vision_start|>"],
        "vision_end_token_id": token_ids["<|vision_end|>"],
        "vision_token_id": token_ids["<|vision_pad|>"],
        "image_token_id": token_ids["<|image_pad|>"],
        "video_token_id": token_ids["<|video_pad|>"],
    }


def _text_config(hidden: int, layers: int, max_position_embeddings: int) -> dict[str, Any]:
    head_dim = hidden // 4
    sixteenth = head_dim // 16
    return {
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": max_position_embeddings,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2 * sixteenth, 3 * sixteenth, 3 * sixteenth]},
        "use_sliding_window": False,
        "vocab_size": VOCAB_SIZE,
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": hidden,
            "num_heads": 2,
            "mlp_ratio": 4,
            "in_chans": 3,
            "patch_size": 14,
            "spatial_patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "model_type": "qwen2_vl",
        },
    }


def _nested(text: dict[str, Any]) -> dict[str, Any]:
    raise NotImplementedError
