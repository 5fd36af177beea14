"""Tiny checkpoints of Qwen3.5 with seeded random weights, in the format of published checkpoints."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.files import save_weights
from tests.checkpoints.qwen2_vl import CHAT_TEMPLATE, stored_name, write_qwen_files
from tests.checkpoints.qwen3_vl import (
    HEAD_DIM,
    HIDDEN,
    INNER,
    PREPROCESSORS,
    ROUTING,
    config_of,
    expert_weights,
    tower_weights,
)
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, readable_token_ids
from tests.checkpoints.weights import Draw, Named

KINDS = ("linear_attention", "linear_attention", "full_attention", "linear_attention")
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 16, 24
"""The gated delta nets."""
SHARED_INNER = 80
"""The shared expert, which is wider than others."""

TEMPLATE = """\
{%- macro said(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content -%}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- else %}{{ part.text }}{% endif %}
{%- endfor -%}
{%- endif %}
{%- endmacro -%}
{%- set system = said(messages[0].content) | trim if messages[0].role == 'system' else '' %}
{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nReply with:\\n<tool_call>\\n<function=NAME>\\n<parameter=NAME>\\nVALUE\\n</parameter>\\n' }}
{{- '</function>\\n</tool_call>' + ('\\n\\n' + system if system else '') + '<|im_end|>\\n' }}
{%- elif system %}{{ '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- set text = said(message.content) | trim %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + text + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + text }}
{%- for call in message.tool_calls or [] %}
{{- '\\n\\n' if loop.first and text else '\\n' if not loop.first else '' }}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + text + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' + ('\\n</think>\\n\\n' if enable_thinking is false else '') }}
{%- endif %}
"""
"""A template of the published form: tools in XML, and a prompt that opens the reasoning unless it is turned off."""


def make_qwen3_5_checkpoint(
    path: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    tied: bool = True,
    experts: bool = False,
    chat_template: str = CHAT_TEMPLATE,
) -> Path:
    """Writes a checkpoint into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        dtype: of the stored weights, "float32" or "bfloat16".
        tied: the output head is the embedding table.
        experts: layers have a mixture of experts with a shared one, as those of Qwen3.5-35B-A3B.
    """
    tokenizer = write_qwen_files(
        path, SPECIAL_TOKENS, chat_template, config=_config(dtype, tied, experts), **PREPROCESSORS
    )
    draw = Draw(torch.Generator().manual_seed(seed))
    readable = readable_token_ids(tokenizer)
    weights = chain(
        _decoder_weights(draw, tied, readable, experts), _draft_weights(draw, experts), tower_weights(draw, ())
    )
    save_weights(path, weights, dtype, rename=stored_name)
    return path


def _config(dtype: str, tied: bool, experts: bool) -> dict[str, Any]:
    config, kind = config_of(dtype, tied), f"qwen3_5{'_moe' if experts else ''}"
    text, vision = config["text_config"], config["vision_config"]
    for member in ("rope_scaling", "rope_theta"):
        del text[member]
    del vision["deepstack_visual_indexes"]
    text |= {
        "model_type": f"{kind}_text",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "layer_types": list(KINDS),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": KEY_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_value_head_dim": VALUE_DIM,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "num_hidden_layers": len(KINDS),
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.5,
            "rope_theta": 10_000_000,
            "rope_type": "default",
        },
    }
    if experts:
        text |= {**ROUTING, "shared_expert_intermediate_size": SHARED_INNER}
        for member in ("intermediate_size", "mlp_only_layers", "norm_topk_prob"):
            del text[member]
    vision["model_type"] = kind
    architecture = f"Qwen3_5{'Moe' if experts else ''}ForConditionalGeneration"
    return config | {"architectures": [architecture], "model_type": kind}


def _decoder_weights(draw: Draw, tied: bool, readable: list[int], experts: bool) -> Iterator[Named]:
    for name, table in draw.vocabulary("model.embed_tokens", HIDDEN, readable):
        yield name, 0.4 * table  # otherwise a tied head magnifies what sums round
    for index, kind in enumerate(KINDS):
        layer = f"model.layers.{index}"
        yield from _norm(draw, f"{layer}.input_layernorm", HIDDEN)
        is_linear = kind == "linear_attention"
        yield from _delta_net(draw, f"{layer}.linear_attn") if is_linear else _attention(draw, f"{layer}.self_attn")
        yield from _norm(draw, f"{layer}.post_attention_layernorm", HIDDEN)
        yield from _experts(draw, f"{layer}.mlp") if experts else draw.mlp(f"{layer}.mlp", HIDDEN, INNER)
    yield from _norm(draw, "model.norm", HIDDEN)
    if not tied:
        yield from draw.vocabulary("lm_head", HIDDEN, readable)


def _experts(draw: Draw, name: str) -> Iterator[Named]:
    """Yields the weights of experts, outputs before inputs, as they are published, and of the shared one."""
    for stored, tensor in expert_weights(draw, name):
        yield stored, tensor.mT.contiguous() if tensor.dim() == 3 else tensor
    yield from draw.mlp(f"{name}.shared_expert", HIDDEN, SHARED_INNER)
    yield from draw.linear(f"{name}.shared_expert_gate", 1, HIDDEN, bias=False)


def _norm(draw: Draw, name: str, width: int) -> Iterator[Named]:
    """Yields the weights of a norm as they are stored, minus 1."""
    yield from ((stored, tensor - 1) for stored, tensor in draw.norm(name, width))


def _attention(draw: Draw, name: str) -> Iterator[Named]:
    for part, heads, gain in (("q_proj", 8, 1.5), ("k_proj", 2, 1.5), ("v_proj", 2, 1.0)):
        yield from draw.linear(f"{name}.{part}", heads * HEAD_DIM, HIDDEN, gain=gain, bias=False)
    for part in ("q_norm", "k_norm"):
        yield from _norm(draw, f"{name}.{part}", HEAD_DIM)
    yield from draw.linear(f"{name}.o_proj", HIDDEN, 4 * HEAD_DIM, gain=6, bias=False)


def _delta_net(draw: Draw, name: str) -> Iterator[Named]:
    width, values = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM, VALUE_HEADS * VALUE_DIM
    for part, rows in (("qkv", width), ("z", values), ("b", VALUE_HEADS), ("a", VALUE_HEADS)):
        yield from draw.linear(f"{name}.in_proj_{part}", rows, HIDDEN, bias=False)
    yield f"{name}.conv1d.weight", torch.randn(width, 1, 4, generator=draw.generator)
    # Some heads forget within a few tokens, others remember hundreds.
    yield f"{name}.A_log", torch.linspace(-4, 0.5, VALUE_HEADS)
    yield f"{name}.dt_bias", torch.randn(VALUE_HEADS, generator=draw.generator) * 0.5 - 1
    yield from draw.norm(f"{name}.norm", VALUE_DIM)
    # Small, as delta nets magnify what is rounded.
    yield from draw.linear(f"{name}.out_proj", HIDDEN, values, gain=0.15, bias=False)


def _draft_weights(draw: Draw, experts: bool) -> Iterator[Named]:
    """Yields the weights of the layer that predicts one token more."""
    yield from draw.linear("mtp.fc", HIDDEN, 2 * HIDDEN, bias=False)
    for name in ("pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm", "layers.0.input_layernorm"):
        yield from _norm(draw, f"mtp.{name}", HIDDEN)
    yield from _attention(draw, "mtp.layers.0.self_attn")
    yield from _norm(draw, "mtp.layers.0.post_attention_layernorm", HIDDEN)
    yield from _experts(draw, "mtp.layers.0.mlp") if experts else draw.mlp("mtp.layers.0.mlp", HIDDEN, INNER)
