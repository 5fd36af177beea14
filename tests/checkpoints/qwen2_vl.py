"""Tiny checkpoints of Qwen2-VL and Qwen2.5-VL with seeded random weights, in the format of published checkpoints.

The weights are scaled so that answers are readable ASCII that depends on the whole prompt, including images. Other
tokens, such as special and end tokens, have small logits; select them with `logit_bias`. Independent of transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer

from tests.checkpoints.files import save_weights, write_files
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, ids_of, make_tokenizer, readable_token_ids
from tests.checkpoints.weights import Draw, Named

VISION_WIDTH = 32

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
    text = text_config(hidden, layers, max_position_embeddings)
    theta, section = 1_000_000.0, [hidden // 32, 3 * hidden // 64, 3 * hidden // 64]
    rope = {"rope_type": "default", "rope_theta": theta, "mrope_section": section}
    nested = {"text_config": text | {"rope_parameters": rope}}
    flat = text | {"rope_theta": theta, "rope_scaling": {"type": "mrope", "mrope_section": section}}
    is_second = family == "qwen2_5_vl"
    vision = _gated_vision_config(hidden) if is_second else _vision_config(hidden)
    config = _common_config(dtype, tied) | {"vision_config": vision, "model_type": family}
    if is_second:
        config["architectures"] = ["Qwen2_5_VLForConditionalGeneration"]
    config |= nested if nested_layout else flat
    tokenizer = write_qwen_files(
        path, SPECIAL_TOKENS, CHAT_TEMPLATE, config=config, preprocessor_config=PREPROCESSOR_CONFIG
    )
    draw = Draw(torch.Generator().manual_seed(seed))
    decoder = decoder_weights(draw, hidden, layers, tied, readable_token_ids(tokenizer))
    weights = chain(decoder, _tower_weights(draw, hidden, gated=is_second))
    save_weights(path, weights, dtype, rename=stored_name if nested_layout else str)
    return path


def write_qwen_files(
    path: Path, special_tokens: Sequence[str], template: str, **documents: Mapping[str, Any]
) -> Tokenizer:
    """Writes these documents and what all of Qwen's checkpoints have beside weights; returns the tokenizer."""
    tokenizer, token_ids = make_tokenizer(special_tokens), ids_of(special_tokens)
    end_token_ids = [token_ids["<|im_end|>"], token_ids["<|endoftext|>"]]
    write_files(
        path,
        tokenizer,
        generation_config={"eos_token_id": end_token_ids, "pad_token_id": end_token_ids[1]},
        tokenizer_config={"eos_token": "<|im_end|>", "chat_template": template},
        **documents,
    )
    return tokenizer


def _common_config(dtype: str, tied: bool) -> dict[str, Any]:
    token_ids = ids_of(SPECIAL_TOKENS)
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


def _tower_weights(draw: Draw, hidden: int, *, gated: bool) -> Iterator[Named]:
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
        yield from draw.mlp(f"{layer}.mlp", hidden, 2 * hidden)
    yield from draw.norm("model.norm", hidden)
    if not tied:
        yield from draw.vocabulary("lm_head", hidden, readable_token_ids)


def stored_name(name: str) -> str:
    """Returns the name of a tensor in the layout whose decoder is `model.language_model`."""
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
