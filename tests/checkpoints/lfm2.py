"""Tiny checkpoints of LFM2-VL with seeded random weights, written by transformers, in the layout of published ones."""

from pathlib import Path
from typing import Any

import torch
from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, draw_weights

PATCH, TILE = 8, 64
"""Sides of a patch and of a tile in pixels. A token is a square of two by two patches."""
MAX_ROWS = 6
"""Rows and columns of tiles for which there are tokens."""
SPECIAL_TOKENS = (
    *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"),
    *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|tool_call_start|>", "<|tool_call_end|>"),
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, MAX_ROWS + 1) for column in range(1, MAX_ROWS + 1)),
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
TILES: dict[str, Any] = {
    "tile_size": TILE,
    "encoder_patch_size": PATCH,
    "downsample_factor": 2,
    "min_tiles": 2,
    "max_tiles": MAX_ROWS,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
    "max_pixels_tolerance": 2.0,
    "do_image_splitting": True,
    "use_thumbnail": True,
}
PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "Lfm2VlImageProcessorFast",
    "processor_class": "Lfm2VlProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    **TILES,
}
TEXT: dict[str, Any] = {
    "model_type": "lfm2",
    **TINY_DECODER,
    "block_multiple_of": 40,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "bos_token_id": TOKEN_IDS["<|startoftext|>"],
    "eos_token_id": TOKEN_IDS["<|im_end|>"],
    "pad_token_id": TOKEN_IDS["<|pad|>"],
}
TEMPLATE = """\
{{- bos_token -}}
{%- macro said(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor -%}
{%- endif %}
{%- endmacro -%}
{%- macro call(function) -%}
{{- function.name + '(' -}}
{%- for name, value in function.arguments | items -%}
{{- name + '=' + ('"' + value + '"' if value is string else value | tojson) + ('' if loop.last else ', ') -}}
{%- endfor -%}
{{- ')' -}}
{%- endmacro -%}
{%- set system = said(messages[0].content) if messages[0].role == 'system' else '' -%}
{%- if tools -%}
{%- set system = system + ('\\n\\n' if system else '') + 'List of tools: ' + (tools | tojson) -%}
{%- endif -%}
{%- if system %}{{ '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}{% endif -%}
{%- for message in messages if message.role != 'system' -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.tool_calls -%}
{{- '<|tool_call_start|>[' -}}
{%- for each in message.tool_calls %}{{ call(each.function) + ('' if loop.last else ', ') }}{% endfor -%}
{{- ']<|tool_call_end|>' -}}
{%- endif -%}
{%- set text = said(message.content or '') -%}
{{- (text if loop.last else text.split('</think>')[-1]) + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
"""A template of the published form: images anywhere, tools in the system message, and calls as Python writes them."""


def make_lfm2_vl_checkpoint(
    path: Path, *, projector_norm: bool = True, template: str = TEMPLATE, as_first_published: bool = False
) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it.

    `as_first_published`: names of fields, and which file has them, are those of LFM2-VL before transformers had it.
    """
    torch.manual_seed(0)
    config = Lfm2VlConfig(
        text_config=TEXT,
        vision_config={
            "model_type": "siglip2_vision_model",
            "hidden_size": 48,
            "intermediate_size": 52,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_patches": 36,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        image_token_id=TOKEN_IDS["<image>"],
        projector_hidden_size=40,
        projector_use_layernorm=projector_norm,
    )
    model = Lfm2VlForConditionalGeneration(config).float()
    draw_weights(model)
    model.save_pretrained(path)
    processor = PREPROCESSOR
    if as_first_published:
        document = {name: value for name, value in config.to_dict().items() if name != "image_token_id"}
        stored = {"architectures": ["Lfm2VlForConditionalGeneration"], "image_token_index": config.image_token_id}
        write_json(path / "config.json", document | stored | {"model_type": "lfm2-vl", "dtype": "float32"})
        write_json(path / "processor_config.json", TILES | {"use_image_special_tokens": True})
        processor = {name: value for name, value in PREPROCESSOR.items() if name not in TILES} | {"do_resize": False}
    tokens = {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    return write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        preprocessor_config=processor,
        tokenizer_config={**tokens, "chat_template": template},
        generation_config={"eos_token_id": TOKEN_IDS["<|im_end|>"]},
    )
