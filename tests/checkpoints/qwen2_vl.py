"""Tiny checkpoints of Qwen2-VL and Qwen2.5-VL with seeded random weights, in the format of published checkpoints.

The weights are scaled so that answers are readable ASCII that depends on the whole prompt, including images. Other
tokens, such as special and end tokens, have small logits; select them with `logit_bias`. Independent of transformers.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

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
PLAIN_TOKENS = (*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
"""In the order of token ids; special tokens follow."""
VOCAB_SIZE = 384
"""Rows of the embedding table: more than the tokenizer's tokens, as in published checkpoints."""
TINY_DECODER: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Sizes in `config.json` that most tiny checkpoints share."""

VISION_WIDTH = 32

Named = tuple[str, torch.Tensor]
Family = Literal["qwen2_vl", "qwen2_5_vl"]

VISION_INTERMEDIATE_SIZE = 52
"""Intermediate size of Qwen2.5-VL's encoder: not a multiple of 16, as in published checkpoints."""

PREPROCESSOR_CONFIG = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}

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
    family: Family = "qwen2_vl",
    max_position_embeddings: int = 4096,
) -> Path:
    """Writes a checkpoint into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        dtype: of the stored weights, "float32" or "bfloat16".
        hidden: width of the decoder, a multiple of 64; it has 4 query heads and 2 key-value heads.
        layers: of the decoder; the vision tower always has 2 of width 32.
        tied: the output head is the embedding table.
        family: Qwen2.5-VL's first vision block attends to windows of 2 × 2 tokens, its second to whole frames.
        nested_layout: config.json and tensor names as in transformers 5, instead of the published flat ones.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    token_ids = {token: index for index, token in enumerate(SPECIAL_TOKENS, len(PLAIN_TOKENS))}
    text = text_config(hidden, layers, max_position_embeddings)
    theta, section = 1_000_000.0, [hidden // 32, 3 * hidden // 64, 3 * hidden // 64]
    rope = {"rope_type": "default", "rope_theta": theta, "mrope_section": section}
    nested = {"text_config": text | {"rope_parameters": rope}}
    flat = text | {"rope_theta": theta, "rope_scaling": {"type": "mrope", "mrope_section": section}}
    is_second = family == "qwen2_5_vl"
    vision = _gated_vision_config(hidden) if is_second else _vision_config(hidden)
    config = _common_config(dtype, tied, token_ids) | {"vision_config": vision, "model_type": family}
    if is_second:
        config["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
    write_json(path / "config.json", config | (nested if nested_layout else flat))
    end_token_ids = [token_ids["<|im_end|>"], token_ids["<|endoftext|>"]]
    write_json(path / "generation_config.json", {"eos_token_id": end_token_ids, "pad_token_id": end_token_ids[1]})
    write_json(path / "preprocessor_config.json", PREPROCESSOR_CONFIG)
    write_json(path / "tokenizer_config.json", {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE})
    draw = Draw(torch.Generator().manual_seed(seed))
    decoder = decoder_weights(draw, hidden, layers, tied, readable_token_ids(tokenizer))
    weights = chain(decoder, _tower_weights(draw, hidden, gated=is_second))
    rename = stored_name if nested_layout else str
    stored = {rename(name): tensor.to(getattr(torch, dtype)) for name, tensor in weights}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    return path


def make_tokenizer(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """Returns a byte-level BPE tokenizer with a few merges and Qwen's special tokens."""
    vocab = {token: index for index, token in enumerate(PLAIN_TOKENS)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer


def readable_token_ids(tokenizer: Tokenizer) -> list[int]:
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


def text_config(hidden: int, layers: int, max_position_embeddings: int) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "max_position_embeddings": max_position_embeddings,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
        "vocab_size": VOCAB_SIZE,
    }


def _vision_config(hidden: int) -> dict[str, Any]:
    return {
        "depth": 2,
        "embed_dim": VISION_WIDTH,
        "hidden_size": hidden,
        "num_heads": 2,
        "mlp_ratio": 4,
        "in_chans": 3,
        "patch_size": 14,
        "spatial_patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _gated_vision_config(hidden: int) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": VISION_WIDTH,
        "hidden_act": "silu",
        "intermediate_size": VISION_INTERMEDIATE_SIZE,
        "out_hidden_size": hidden,
        "num_heads": 2,
        "in_chans": 3,
        "patch_size": 14,
        "spatial_patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }


def _tower_weights(draw: "Draw", hidden: int, *, gated: bool) -> Iterator[Named]:
    patch_embedding = next(draw.linear("visual.patch_embed.proj", VISION_WIDTH, 3 * 2 * 14 * 14, bias=False))[1]
    yield "visual.patch_embed.proj.weight", patch_embedding.view(VISION_WIDTH, 3, 2, 14, 14)
    for block in ("visual.blocks.0", "visual.blocks.1"):
        yield from draw.norm(f"{block}.norm1", VISION_WIDTH, bias=not gated)
        yield from draw.linear(f"{block}.attn.qkv", 3 * VISION_WIDTH, VISION_WIDTH, gain=1.5)
        yield from draw.linear(f"{block}.attn.proj", VISION_WIDTH, VISION_WIDTH)
        yield from draw.norm(f"{block}.norm2", VISION_WIDTH, bias=not gated)
        if gated:
            yield from draw.linear(f"{block}.mlp.gate_proj", VISION_INTERMEDIATE_SIZE, VISION_WIDTH)
            yield from draw.linear(f"{block}.mlp.up_proj", VISION_INTERMEDIATE_SIZE, VISION_WIDTH)
            yield from draw.linear(f"{block}.mlp.down_proj", VISION_WIDTH, VISION_INTERMEDIATE_SIZE)
        else:
            yield from draw.linear(f"{block}.mlp.fc1", 4 * VISION_WIDTH, VISION_WIDTH)
            yield from draw.linear(f"{block}.mlp.fc2", VISION_WIDTH, 4 * VISION_WIDTH)
    yield from draw.norm("visual.merger.ln_q", VISION_WIDTH, bias=not gated)
    yield from draw.linear("visual.merger.mlp.0", 4 * VISION_WIDTH, 4 * VISION_WIDTH)
    yield from draw.linear("visual.merger.mlp.2", hidden, 4 * VISION_WIDTH)


class Draw:
    """Draws random tensors."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def linear(self, name: str, rows: int, columns: int, *, gain: float = 1.0, bias: bool = True) -> Iterator[Named]:
        """Yields a weight matrix and a bias."""
        yield f"{name}.weight", torch.randn(rows, columns, generator=self.generator) * gain / math.sqrt(columns)
        if bias:
            yield f"{name}.bias", torch.randn(rows, generator=self.generator) * 0.1

    def norm(self, name: str, width: int, *, bias: bool = False) -> Iterator[Named]:
        """Yields norm weights around one and a bias."""
        yield f"{name}.weight", 1 + torch.randn(width, generator=self.generator) * 0.1
        if bias:
            yield f"{name}.bias", torch.randn(width, generator=self.generator) * 0.1

    def vocabulary(self, name: str, hidden: int, readable_token_ids: list[int]) -> Iterator[Named]:
        """Yields an embedding table or an output head."""
        scale = torch.full((VOCAB_SIZE, 1), 0.02)
        scale[readable_token_ids] = 0.3
        yield f"{name}.weight", torch.randn(VOCAB_SIZE, hidden, generator=self.generator) * scale


def decoder_weights(draw: Draw, hidden: int, layers: int, tied: bool, readable_token_ids: list[int]) -> Iterator[Named]:
    """Yields Qwen2's tensors with their names in text-only checkpoints."""
    yield from draw.vocabulary("model.embed_tokens", hidden, readable_token_ids)
    for layer in (f"model.layers.{index}" for index in range(layers)):
        yield from draw.norm(f"{layer}.input_layernorm", hidden)
        yield from draw.linear(f"{layer}.self_attn.q_proj", hidden, hidden, gain=1.5)
        yield from draw.linear(f"{layer}.self_attn.k_proj", hidden // 2, hidden, gain=1.5)
        yield from draw.linear(f"{layer}.self_attn.v_proj", hidden // 2, hidden)
        yield from draw.linear(f"{layer}.self_attn.o_proj", hidden, hidden, gain=4, bias=False)
        yield from draw.norm(f"{layer}.post_attention_layernorm", hidden)
        yield from draw.linear(f"{layer}.mlp.gate_proj", 2 * hidden, hidden, bias=False)
        yield from draw.linear(f"{layer}.mlp.up_proj", 2 * hidden, hidden, bias=False)
        yield from draw.linear(f"{layer}.mlp.down_proj", hidden, 2 * hidden, gain=1.5, bias=False)
    yield from draw.norm("model.norm", hidden)
    if not tied:
        yield from draw.vocabulary("lm_head", hidden, readable_token_ids)


def stored_name(name: str) -> str:
    """Returns the name of a tensor in the layout whose decoder is `model.language_model`."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def write_json(path: Path, document: dict[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(document, indent=2))


def write_changed_config(folder: Path, document: Mapping[str, Any], **fields: Any) -> Path:
    """Writes a configuration whose fields are changed, those of objects one by one. Returns the folder."""
    changed = {
        name: {**document[name], **value} if isinstance(value, dict) else value for name, value in fields.items()
    }
    write_json(folder / "config.json", {**document, **changed})
    return folder
