"""Tiny checkpoints of GLM-OCR, GLM-4.1V and GLM-4.6V-Flash with seeded random weights, written by transformers, in the
layout of published ones."""

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
)

from tests.checkpoints.files import write_files
from tests.checkpoints.qwen2_vl import PREPROCESSOR_CONFIG as QWEN_PREPROCESSOR_CONFIG
from tests.checkpoints.tokenizer import ids_of, make_tokenizer
from tests.checkpoints.weights import TINY_DECODER, draw_weights, temper_attention

SPECIAL_TOKENS = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
LAYERS = 2
CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- for message in messages %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else -%}
{%- for part in message.content %}
{%- if part.type in ('image', 'video') %}<|begin_of_{{ part.type }}|><|{{ part.type }}|><|end_of_{{ part.type }}|>
{%- else %}{{ part.text }}
{%- endif %}
{%- endfor -%}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""
TOOL_TEMPLATE = """\
[gMASK]<sop>
{%- macro parts(content) %}
{%- if content is string %}{{ content }}{% else %}
{%- for part in content %}
{%- if part.type in ('image', 'video') %}<|begin_of_{{ part.type }}|><|{{ part.type }}|><|end_of_{{ part.type }}|>
{%- else %}{{ part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- if tools %}<|system|>
Tools:
{%- for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{%- endfor %}
Call one: <tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}<|assistant|>
<think>{{ message.reasoning_content }}</think>
{{ parts(message.content) | trim }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() -%}
<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson(ensure_ascii=False) }}</arg_value>
{% endfor %}</tool_call>
{%- endfor %}
{%- elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}
<tool_response>
{{ parts(message.content) }}
</tool_response>
{%- else %}<|{{ message.role }}|>
{{ parts(message.content) }}{{ '/nothink' if message.role == 'user' and enable_thinking is false }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{{ '<think></think>\\n' if enable_thinking is false }}
{%- endif %}"""
"""Has calls of tools and a switch for reasoning, like GLM-4.6V-Flash's."""
IDS: dict[str, Any] = {
    "image_token_id": TOKEN_IDS["<|image|>"],
    "video_token_id": TOKEN_IDS["<|video|>"],
    "tie_word_embeddings": False,
}


def make_glm_ocr_checkpoint(path: Path) -> Path:
    """Writes a checkpoint of float32 into the folder `path`, which is made if it does not exist, and returns it."""
    torch.manual_seed(0)
    config = GlmOcrConfig(
        text_config={
            **TINY_DECODER,
            "num_hidden_layers": LAYERS,
            "num_nextn_predict_layers": 1,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "intermediate_size": 52,
        },
        **IDS,
    )
    _save(GlmOcrForConditionalGeneration(config), path, processor="Glm46V", chat_template=CHAT_TEMPLATE)
    weights = load_file(path / "model.safetensors")
    last, drafts = (f"model.language_model.layers.{index}." for index in (LAYERS - 1, LAYERS))
    weights |= {name.replace(last, drafts): tensor * 1.1 for name, tensor in weights.items() if last in name}
    weights |= {f"{drafts}{name}.weight": torch.rand(64) + 0.5 for name in ("enorm", "hnorm", "shared_head.norm")}
    weights |= {f"{drafts}eh_proj.weight": 0.2 * torch.randn(64, 128)}
    weights |= {f"{drafts}shared_head.head.weight": weights["lm_head.weight"].clone()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def make_glm4v_checkpoint(path: Path, *, kind: Literal["Glm4v", "Glm46V"] = "Glm4v") -> Path:
    """Does the same for GLM-4.1V or GLM-4.6V-Flash. The names are those of their processors."""
    torch.manual_seed(0)
    config_type, model_type = {
        "Glm4v": (Glm4vConfig, Glm4vForConditionalGeneration),
        "Glm46V": (Glm46VConfig, Glm46VForConditionalGeneration),
    }[kind]
    config: Any = config_type(
        text_config={
            "model_type": "glm4v_text",
            "vocab_size": 384,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 0.5,
            },
        },
        vision_config={
            "model_type": "glm4v_vision",
            "depth": 2,
            "hidden_size": 48,
            "num_heads": 2,
            "image_size": 84,
            "out_hidden_size": 64,
            "intermediate_size": 52,
        },
        **IDS,
    )
    _save(model_type(config), path, processor=kind, chat_template=CHAT_TEMPLATE if kind == "Glm4v" else TOOL_TEMPLATE)
    return path


def _save(model: Any, path: Path, *, processor: str, chat_template: str) -> None:
    draw_weights(model.float())
    temper_attention(model)
    model.save_pretrained(path)
    size = {"shortest_edge": 12_544, "longest_edge": 9_633_792}
    bounds = ("min_pixels", "max_pixels")
    config = {name: value for name, value in QWEN_PREPROCESSOR_CONFIG.items() if name not in bounds}
    config |= {"size": size, "processor_class": f"{processor}Processor"}
    videos = {"size": size | {"longest_edge": 47_040_000}, "video_processor_type": f"{processor}VideoProcessor"}
    write_files(
        path,
        make_tokenizer(SPECIAL_TOKENS),
        preprocessor_config=config | {"image_processor_type": f"{processor}ImageProcessor"},
        video_preprocessor_config=config | videos | {"fps": 2, "num_frames": 16},
        tokenizer_config={"eos_token": "<|endoftext|>", "chat_template": chat_template},
        generation_config={"eos_token_id": [TOKEN_IDS["<|endoftext|>"], TOKEN_IDS["<|user|>"]]},
    )
