"""Tiny Gemma 4 checkpoints with images, videos, audio and seeded random weights, written by transformers, in the layout
of published ones."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma4AudioConfig,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
    Gemma4UnifiedAudioConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextConfig,
    Gemma4UnifiedVisionConfig,
    Gemma4VisionConfig,
)

from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import PLAIN, VOCAB_SIZE, save_tokenizer
from tests.checkpoints.text import GEMMA4_TRAITS, LARGE_GEMMA4_TRAITS, temper
from tests.checkpoints.weights import draw_weights

PATCH, POOL = 4, 2
"""Sides of a patch in pixels and of a token in patches."""
BUDGET = 70
WAVE = 640
"""Samples of a token of audio without an encoder."""

_ADDED = (
    "<|turn>",
    "<turn|>",
    "<|image>",
    "<image|>",
    "<|image|>",
    "<|audio>",
    "<audio|>",
    "<|audio|>",
    "<|video|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|channel>",
    "<channel|>",
    "<|think|>",
)
TOKEN_IDS = {token: index for index, token in enumerate((*PLAIN, *_ADDED))}

CHAT_TEMPLATE = """\
{%- macro written(value) -%}
{%- if value is string -%}{{ '<|"|>' + value + '<|"|>' }}
{%- elif value is boolean -%}{{ 'true' if value else 'false' }}
{%- elif value is mapping -%}{{ '{' + members(value) + '}' }}
{%- elif value is iterable -%}
{{ '[' }}{%- for each in value -%}{{ written(each) + ('' if loop.last else ',') }}{%- endfor -%}{{ ']' }}
{%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{%- macro members(value) -%}
{%- for name, each in value | dictsort -%}{{ name + ':' + written(each) + ('' if loop.last else ',') }}{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- set open = namespace(is_model=false, is_called=false) -%}
{%- set first = messages[0]['role'] in ['system', 'developer'] -%}
{%- if first or tools or enable_thinking -%}
{{ '<|turn>system\n' + ('<|think|>\n' if enable_thinking else '') }}
{%- if first -%}
{%- set text = messages[0]['content'] -%}
{{ text | trim if text is string else text | map(attribute='text') | map('trim') | join(' ') }}
{%- endif -%}
{%- for tool in tools or [] -%}
{%- set function = tool['function'] -%}
{{ '<|tool>declaration:' + function['name'] + '{' + members(
    {'description': function['description'] or '', 'parameters': function['parameters']}) + '}<tool|>' }}
{%- endfor -%}
{{ '<turn|>\n' }}
{%- endif -%}
{%- for message in (messages[1:] if first else messages) -%}
{%- set is_model = message['role'] == 'assistant' -%}
{%- if message['role'] == 'tool' -%}
{{ '<|tool_response>response:' + open.names[message['tool_call_id']] + '{value:' + written(message['content']) +
    '}<tool_response|>' }}
{%- else -%}
{%- if not (open.is_model and is_model) -%}
{{ '<|turn>' + ('model' if is_model else message['role']) + '\n' }}
{%- endif -%}
{%- if message['tool_calls'] and message['reasoning_content'] -%}
{{ '<|channel>thought\n' + message['reasoning_content'] + '\n<channel|>' }}
{%- endif -%}
{%- set open.names = {} -%}
{%- for call in message['tool_calls'] or [] -%}
{{ '<|tool_call>call:' + call['function']['name'] + '{' + members(call['function']['arguments']) + '}<tool_call|>' }}
{%- set open.names = dict(open.names, **{call['id']: call['function']['name']}) -%}
{%- endfor -%}
{%- if message['content'] is string -%}{{ message['content'] | trim }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] in ['image', 'video', 'audio'] -%}{{ '<|' + part['type'] + '|>' }}
{%- elif part['type'] == 'text' -%}{{ part['text'] | trim }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- set open.is_model = is_model and message['tool_calls'] -%}
{%- if not open.is_model -%}{{ '<turn|>\n' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not open.is_model -%}
{{ '<|turn>model\n' + ('' if enable_thinking else '<|channel>thought\n<channel|>') }}
{%- endif -%}
"""
"""A template of the published one's form: calls, their results and the answer after them are one turn of the model."""

IMAGE_PROCESSOR: Mapping[str, Any] = {
    "do_convert_rgb": True,
    "do_normalize": False,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.0, 0.0, 0.0],
    "image_processor_type": "Gemma4ImageProcessor",
    "image_seq_length": BUDGET,
    "image_std": [1.0, 1.0, 1.0],
    "max_soft_tokens": BUDGET,
    "patch_size": PATCH,
    "pooling_kernel_size": POOL,
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
}
VIDEO_PROCESSOR: Mapping[str, Any] = {
    **{name: value for name, value in IMAGE_PROCESSOR.items() if not name.startswith("image_")},
    "do_normalize": True,
    "do_sample_frames": True,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
    "num_frames": 32,
    "return_metadata": False,
    "video_processor_type": "Gemma4VideoProcessor",
}
_TOKENIZER: Mapping[str, Any] = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "image_token": "<|image|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "audio_token": "<|audio|>",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "processor_class": "Gemma4Processor",
}


def make_gemma4_checkpoint(path: Path, *, is_large: bool = False, is_unified: bool = False) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        is_large: as 31B, where the tokens of an image attend to each other; otherwise as E2B, which hears.
        is_unified: as 12B, which hears too and has no encoders.
    """
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "vocab_size": VOCAB_SIZE,
    }
    is_large = is_large or is_unified
    traits = LARGE_GEMMA4_TRAITS if is_large else GEMMA4_TRAITS
    text: dict[str, Any] = {
        **sizes,
        **traits,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "use_bidirectional_attention": "vision" if is_large else None,
    }
    vision = Gemma4VisionConfig(
        hidden_size=32,
        intermediate_size=52,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=24,
        patch_size=PATCH,
        pooling_kernel_size=POOL,
        position_embedding_size=64,
        use_clipped_linears=not is_large,
        standardize=is_large,
    )
    audio = Gemma4AudioConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        subsampling_conv_channels=[128, 6],
        conv_kernel_size=3,
        output_proj_dims=24,
    )
    ids: dict[str, Any] = {
        "boi_token_id": TOKEN_IDS["<|image>"],
        "eoi_token_id": TOKEN_IDS["<image|>"],
        "image_token_id": TOKEN_IDS["<|image|>"],
        "boa_token_id": TOKEN_IDS["<|audio>"],
        "eoa_token_index": TOKEN_IDS["<audio|>"],
        "audio_token_id": TOKEN_IDS["<|audio|>"],
        "video_token_id": TOKEN_IDS["<|video|>"],
    }
    if is_unified:
        fields: dict[str, Any] = {name: text[name] for name in text if "per_layer_input" not in name}
        pixels = Gemma4UnifiedVisionConfig(
            patch_size=PATCH, pooling_kernel_size=POOL, mm_embed_dim=40, mm_posemb_size=BUDGET, output_proj_dims=40
        )
        own, waves = Gemma4UnifiedTextConfig(**fields), Gemma4UnifiedAudioConfig(audio_embed_dim=WAVE)
        unified = Gemma4UnifiedConfig(text_config=own, vision_config=pixels, audio_config=waves, **ids)
        model: Any = Gemma4UnifiedForConditionalGeneration(unified).float()
    else:
        config = Gemma4Config(
            text_config=Gemma4TextConfig(**text),
            vision_config=vision,
            audio_config=None if is_large else audio,
            **ids,
        )
        model = Gemma4ForConditionalGeneration(config).float()
    draw_weights(model)
    temper(model)
    # Answers have no placeholders, which the reference would take for media.
    model.get_input_embeddings().weight.data[len(PLAIN) :].mul_(0.2)
    _draw_buffers(model)
    model.save_pretrained(path)
    write_json(
        path / "generation_config.json", {"eos_token_id": [1, TOKEN_IDS["<turn|>"], TOKEN_IDS["<|tool_response>"]]}
    )
    processor = {
        "processor_class": "Gemma4Processor",
        "image_processor": dict(IMAGE_PROCESSOR),
        "video_processor": dict(VIDEO_PROCESSOR),
    }
    if is_unified:
        processor["feature_extractor"] = {"feature_size": WAVE, "audio_samples_per_token": WAVE}
    elif not is_large:
        processor["feature_extractor"] = json.loads(Gemma4AudioFeatureExtractor().to_json_string())
    write_json(path / "processor_config.json", processor)
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    save_tokenizer(path, _ADDED, _TOKENIZER)
    return path


make_large_gemma4_checkpoint = partial(make_gemma4_checkpoint, is_large=True)
make_unified_gemma4_checkpoint = partial(make_gemma4_checkpoint, is_unified=True)


def _draw_buffers(model: torch.nn.Module) -> None:
    """Draws bounds that some activations exceed, and statistics."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            member = name.rpartition(".")[2]
            if member in ("input_min", "output_min"):
                buffer.fill_(-1.5)
            elif member in ("input_max", "output_max"):
                buffer.fill_(1.25)
            elif member == "std_scale":
                buffer.uniform_(0.5, 1.5)
            elif member == "std_bias":
                buffer.normal_(std=0.3)
