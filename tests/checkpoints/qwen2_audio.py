"""Tiny Qwen2-Audio checkpoints with seeded random weights, in the format of published checkpoints.

Answers have the properties described in `tests.checkpoints.qwen2_vl`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints.files import save_weights
from tests.checkpoints.qwen2_vl import decoder_weights, text_config, write_qwen_files
from tests.checkpoints.tokenizer import ids_of, readable_token_ids
from tests.checkpoints.weights import Draw, Named

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
WIDTH = 32
"""Hidden size of the encoder."""
LAYERS = 2

PREPROCESSOR_CONFIG = {
    "chunk_length": 30,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "processor_class": "Qwen2AudioProcessor",
    "return_attention_mask": True,
    "sampling_rate": 16000,
}

CHAT_TEMPLATE = """\
{%- set count = namespace(value=0) -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if 'audio_url' in part -%}
{%- set count.value = count.value + 1 -%}
Audio {{ count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>
{% elif 'text' in part -%}
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
"""Detects audio by the member that the published template checks."""


def make_audio_checkpoint(
    path: Path, *, seed: int = 0, hidden: int = 64, layers: int = 2, nested_names: bool = False
) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        hidden: width of the decoder, a multiple of 64; it has 4 query heads and 2 key-value heads.
        layers: of the decoder; the encoder always has 2 of width 32.
        nested_names: tensor names as inside transformers 5, instead of the published ones.
    """
    tokenizer = write_qwen_files(
        path,
        SPECIAL_TOKENS,
        CHAT_TEMPLATE,
        config=_config(hidden, layers),
        preprocessor_config=PREPROCESSOR_CONFIG,
    )
    draw = Draw(torch.Generator().manual_seed(seed))
    decoder = decoder_weights(draw, hidden, layers, False, readable_token_ids(tokenizer))
    stored = {f"language_model.{name}": tensor for name, tensor in decoder} | dict(_encoder_weights(draw, hidden))
    save_weights(path, stored.items(), rename=_nested_name if nested_names else str)
    return path


def _config(hidden: int, layers: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "torch_dtype": "float32",
        "audio_token_index": TOKEN_IDS["<|AUDIO|>"],
        "text_config": text_config(hidden, layers, 4096) | {"model_type": "qwen2"},
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "activation_function": "gelu",
            "d_model": WIDTH,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 4 * WIDTH,
            "encoder_layers": LAYERS,
            "max_source_positions": 1500,
            "num_mel_bins": 128,
            "scale_embedding": False,
        },
    }


def _encoder_weights(draw: Draw, hidden: int) -> Iterator[Named]:
    for name, width_in in (("conv1", 128), ("conv2", WIDTH)):
        for part, tensor in draw.linear(name, WIDTH, 3 * width_in, gain=1.5):
            yield f"audio_tower.{part}", tensor.view(WIDTH, width_in, 3) if tensor.dim() == 2 else tensor
    yield "audio_tower.embed_positions.weight", torch.randn(1500, WIDTH, generator=draw.generator) * 0.3
    for layer in (f"audio_tower.layers.{index}" for index in range(LAYERS)):
        yield from draw.norm(f"{layer}.self_attn_layer_norm", WIDTH, bias=True)
        yield from draw.linear(f"{layer}.self_attn.q_proj", WIDTH, WIDTH, gain=1.5)
        yield from draw.linear(f"{layer}.self_attn.k_proj", WIDTH, WIDTH, gain=1.5, bias=False)
        yield from draw.linear(f"{layer}.self_attn.v_proj", WIDTH, WIDTH)
        yield from draw.linear(f"{layer}.self_attn.out_proj", WIDTH, WIDTH)
        yield from draw.norm(f"{layer}.final_layer_norm", WIDTH, bias=True)
        yield from draw.linear(f"{layer}.fc1", 4 * WIDTH, WIDTH)
        yield from draw.linear(f"{layer}.fc2", WIDTH, 4 * WIDTH)
    yield from draw.norm("audio_tower.layer_norm", WIDTH, bias=True)
    yield from draw.linear("multi_modal_projector.linear", hidden, WIDTH)


def _nested_name(name: str) -> str:
    for prefix, inside in (("language_model.model.", "model.language_model."), ("language_model.lm_head.", "lm_head.")):
        if name.startswith(prefix):
            return inside + name.removeprefix(prefix)
    return f"model.{name}"
