"""Whisper's encoder, in Qwen2-Audio and Ultravox."""

from collections.abc import Mapping
from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import (
    PREPROCESSOR,
)

_WHISPER_NAMES: Mapping[str, str] = {
    "a.conv1d.1": "audio_tower.conv1",
    "a.conv1d.2": "audio_tower.conv2",
    "a.position_embd": "audio_tower.embed_positions",
    "ln1": "audio_tower.layers.{}.self_attn_layer_norm",
    "ln2": "audio_tower.layers.{}.final_layer_norm",
    "attn_q": "audio_tower.layers.{}.self_attn.q_proj",
    "attn_k": "audio_tower.layers.{}.self_attn.k_proj",
    "attn_v": "audio_tower.layers.{}.self_attn.v_proj",
    "attn_out": "audio_tower.layers.{}.self_attn.out_proj",
    "ffn_up": "audio_tower.layers.{}.fc1",
    "ffn_down": "audio_tower.layers.{}.fc2",
    "a.post_ln": "audio_tower.layer_norm",
}
_CONVOLUTIONS: Mapping[str, Change | None] = dict.fromkeys(("a.conv1d.1.bias", "a.conv1d.2.bias"), Change.UNSQUEEZED)


def whisper(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of Whisper's encoder."""
    encoder.keys.require("audio.attention.layer_norm_epsilon", encoder.norm_eps, 1e-5)
    return {
        "num_mel_bins": encoder.keys.size("audio.num_mel_bins"),
        "d_model": encoder.width,
        "encoder_ffn_dim": encoder.intermediate_size,
        "encoder_layers": encoder.depth,
        "encoder_attention_heads": encoder.num_heads,
        "max_source_positions": encoder.shape("a.position_embd.weight", 2)[0],
    }


def whisper_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file, whose other fields are Whisper's."""
    return {PREPROCESSOR: {"feature_size": encoder.keys.size("audio.num_mel_bins")}}


def ultravox_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the projector. llama.cpp has none with a norm behind it, as in v0.4."""
    return {
        "hidden_size": encoder.shape("mm.a.mlp.1.weight", 2)[0],
        "stack_factor": encoder.merge,
        "projector_ln_mid": True,
    }


QWEN2_AUDIO = Projector(
    architectures={"qwen2": "Qwen2AudioForConditionalGeneration"},
    modality="audio",
    names={
        **_WHISPER_NAMES,
        "mm.a.fc": "multi_modal_projector.linear",
    },
    changes=_CONVOLUTIONS,
    output=("mm.a.fc.weight", 0),
    squares=None,
    encoder_config=whisper,
    files=whisper_files,
    placeholders={"audio_token_index": ("<|AUDIO|>",)},
)
ULTRAVOX = Projector(
    architectures={"llama": "UltravoxModel"},
    modality="audio",
    names={
        **_WHISPER_NAMES,
        "mm.a.norm_pre": "multi_modal_projector.ln_pre",
        "mm.a.norm_mid": "multi_modal_projector.ln_mid",
        "mm.a.mlp.1": "multi_modal_projector.linear_1",
        "mm.a.mlp.2": "multi_modal_projector.linear_2",
    },
    changes=_CONVOLUTIONS,
    output=("mm.a.mlp.2.weight", 0),
    squares=None,
    merge_key="audio.projector.stack_factor",
    encoder_config=whisper,
    config=ultravox_config,
    files=lambda _encoder: {},  # without one, it is made of the encoder's sizes
    placeholders={},
)
