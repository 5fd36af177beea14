"""Tiny checkpoints of Mistral 3 and LightOnOCR with seeded random weights, written by transformers, in the layout of
published ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import (
    LightOnOcrConfig,
    LightOnOcrForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    PixtralVisionConfig,
    Qwen3Config,
)

from tests.checkpoints.files import write_files
from tests.checkpoints.llava import PREPROCESSOR_CONFIG as CLIP_PREPROCESSOR_CONFIG
from tests.checkpoints.llava import Names, save_model
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE as CHATML
from tests.checkpoints.tokenizer import SPECIAL_TOKENS as CHATML_TOKENS
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, draw_weights, temper_attention

Kind = Literal["mistral", "ministral3", "pixtral", "lighton_ocr"]
"""What the decoder is, or the model."""

PATCH = 14
LONGEST_EDGE = 140
_MISTRAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[ARGS]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]"),
    "[/SYSTEM_PROMPT]",
)
VOCAB_SIZE = 320
"""Rows of the embedding table: more than the tokenizer's tokens, as in published checkpoints."""

CHAT_TEMPLATE = """\
{%- macro said(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content %}{{ '[IMG]' if part.type == 'image' else part.text }}{% endfor -%}
{%- endif %}
{%- endmacro -%}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + said(message.content) + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + said(message.content) + '[/INST]' }}
{%- elif message.role == 'assistant' %}
{{- said(message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + said(message.content) + '[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}
"""
"""A template of the published form: calls are names and arguments, each after a token of its own."""

_SIZES: Mapping[str, Any] = {
    **TINY_DECODER,
    "vocab_size": VOCAB_SIZE,
    "head_dim": 32,
}
YARN: Mapping[str, Any] = {
    "type": "yarn",
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Ministral 3's numbers, with a smaller context window, and `beta_fast` so that frequencies of all kinds occur."""


def merge_of(kind: Kind) -> int:
    """Returns how many patches lie along each side of a token."""
    return 1 if kind == "pixtral" else 2


def token_ids_of(kind: Kind) -> Mapping[str, int]:
    tokens = CHATML_TOKENS if kind == "lighton_ocr" else _MISTRAL_TOKENS
    return ids_of(tokens)


def make_mistral3_checkpoint(path: Path, *, kind: Kind = "mistral", names: Names = "saved") -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        names: of the tensors. Those that transformers saves are the published ones.
    """
    torch.manual_seed(0)
    is_ocr, ids = kind == "lighton_ocr", token_ids_of(kind)
    end = "<|im_end|>" if is_ocr else "</s>"
    sizes: dict[str, Any] = {**_SIZES, "eos_token_id": ids[end], "bos_token_id": None, "pad_token_id": None}
    vision = PixtralVisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=LONGEST_EDGE,
        patch_size=PATCH,
        hidden_act="silu",
    )
    if kind == "pixtral":
        text: Any = MistralConfig(**sizes, max_position_embeddings=512, sliding_window=None)
        config: Any = LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=ids["[IMG]"],
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=False,
        )
        model: Any = LlavaForConditionalGeneration(config).float()
    elif is_ocr:
        text = Qwen3Config(**sizes, max_position_embeddings=512)
        config = LightOnOcrConfig(vision_config=vision, text_config=text, image_token_id=ids["<|image_pad|>"])
        model = LightOnOcrForConditionalGeneration(config).float()
    else:
        text = (
            MistralConfig(**sizes, max_position_embeddings=512, sliding_window=None)
            if kind == "mistral"
            else Ministral3Config(**sizes, max_position_embeddings=4096, rope_parameters=dict(YARN))
        )
        config = Mistral3Config(
            vision_config=vision, text_config=text, image_token_index=ids["[IMG]"], tie_word_embeddings=False
        )
        model = Mistral3ForConditionalGeneration(config).float()
    draw_weights(model)
    temper_attention(model)
    save_model(model, path, names)
    merge = merge_of(kind)
    token = PATCH * merge if is_ocr else PATCH
    processor = {
        name: CLIP_PREPROCESSOR_CONFIG[name] for name in ("image_mean", "image_std", "resample", "rescale_factor")
    }
    sides = {"patch_size": {"height": token, "width": token}, "size": {"longest_edge": LONGEST_EDGE}}
    return write_files(
        path,
        make_tokenizer(tuple(ids)),
        preprocessor_config={**processor, **sides, "image_processor_type": "PixtralImageProcessor"},
        processor_config={"patch_size": PATCH, "spatial_merge_size": merge},
        tokenizer_config={
            "bos_token": None if is_ocr else "<s>",
            "eos_token": end,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHATML if is_ocr else CHAT_TEMPLATE,
        },
    )
