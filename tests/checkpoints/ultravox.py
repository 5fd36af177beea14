"""Tiny Ultravox checkpoints with seeded random weights: projector, encoder and decoder in one folder, or in three.

Answers have the properties described in `tests.checkpoints.qwen2_vl`.
The encoder hears chunks of two seconds instead of thirty.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, models

from tests.checkpoints.files import write_files, write_json
from tests.checkpoints.text import LLAMA3_ROPE
from tests.checkpoints.tokenizer import ids_of, make_tokenizer, readable_token_ids
from tests.checkpoints.weights import TINY_DECODER, Draw

WhisperEncoder = models.whisper.modeling_whisper.WhisperEncoder

SPECIAL_TOKENS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TOKEN_IDS = ids_of(SPECIAL_TOKENS)
AUDIO_TOKEN_ID = 300
"""A token of the vocabulary, as in published checkpoints."""
MEL_BINS = 80
WIDTH = 32
STACK = 8
PROJECTOR = 96
CHUNK_SECONDS = 2

PREPROCESSOR_CONFIG = {
    "chunk_length": CHUNK_SECONDS,
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": MEL_BINS,
    "hop_length": 160,
    "n_fft": 400,
    "padding_value": 0.0,
    "sampling_rate": 16000,
}

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
"""Reads contents as texts, as Llama 3's."""


def make_ultravox_checkpoint(
    path: Path, *, seed: int = 0, norm_mid: bool = True, whisper_names: bool = False, llama_names: bool = False
) -> Path:
    """Writes a checkpoint of float32 into the folder `path` and returns it.

    Args:
        path: made if it does not exist.
        norm_mid: as in v0.5; False: as in v0.4.
        whisper_names: the encoder's tensors have the names of a whole Whisper checkpoint, and its decoder's are there.
        llama_names: the decoder's tensors have the names of its own checkpoint.
    """
    tokenizer = make_tokenizer(SPECIAL_TOKENS)
    bos = SPECIAL_TOKENS[0]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, TOKEN_IDS[bos])])
    write_files(
        path,
        tokenizer,
        config=_config(norm_mid),
        generation_config={"eos_token_id": [TOKEN_IDS["<|eot_id|>"]]},
        preprocessor_config=PREPROCESSOR_CONFIG,
        tokenizer_config={"bos_token": bos, "eos_token": "<|eot_id|>", "chat_template": CHAT_TEMPLATE},
    )
    stored = _weights(Draw(torch.Generator().manual_seed(seed)), norm_mid, readable_token_ids(tokenizer))
    if whisper_names:
        stored = {name.replace("audio_tower.", "audio_tower.model.encoder."): each for name, each in stored.items()}
        stored["audio_tower.model.decoder.layer_norm.weight"] = torch.ones(WIDTH)
        stored["audio_tower.proj_out.weight"] = torch.ones(3, WIDTH)
    if llama_names:
        stored = {name.removeprefix("language_model."): each for name, each in stored.items()}
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    return path


def split_ultravox_checkpoint(whole: Path, folder: Path, *, own_encoder: bool = False) -> Path:
    """Writes the parts of a checkpoint as they are published, each into a folder in `folder`, and returns that of the
    projector, "ultravox". It names the decoder, in the folder "llama", org/llama, and the encoder, in "whisper",
    org/whisper.

    Args:
        folder: made if it does not exist.
        own_encoder: the encoder stays with the projector, as in published checkpoints that trained it, and there is no
            preprocessor's configuration.
    """
    ultravox, decoder, encoder = (folder / name for name in ("ultravox", "llama", "whisper"))
    for path in (ultravox, decoder, encoder):
        path.mkdir(parents=True)
    document = _document(whole)
    names = {"text_model_id": "org/llama", "audio_model_id": None if own_encoder else "org/whisper"}
    text, audio = document.pop("text_config"), document.pop("audio_config")
    write_json(ultravox / "config.json", document | names | ({"audio_config": audio} if own_encoder else {}))
    write_json(decoder / "config.json", text | {"architectures": ["LlamaForCausalLM"]})
    write_json(encoder / "config.json", audio | {"architectures": ["WhisperForConditionalGeneration"]})
    write_json(encoder / "generation_config.json", {"eos_token_id": 0})
    write_json(encoder / "preprocessor_config.json", PREPROCESSOR_CONFIG)
    shutil.copy(whole / "generation_config.json", decoder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, ultravox)
    parts = {"language_model": (decoder, ""), "audio_tower": (encoder, "model.encoder.")}
    stored = {path: dict[str, torch.Tensor]() for path in (ultravox, decoder, encoder)}
    for name, tensor in load_file(whole / "model.safetensors").items():
        part, _, rest = name.partition(".")
        if part not in parts or (part == "audio_tower" and own_encoder):
            stored[ultravox][name] = tensor
        else:
            path, prefix = parts[part]
            stored[path][prefix + rest] = tensor
    stored[encoder]["model.decoder.layer_norm.weight"] = torch.ones(WIDTH)
    for path, tensors in stored.items():
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return ultravox


def whisper_encoder(path: Path) -> WhisperEncoder:
    """Returns the reference encoder of a checkpoint's configuration, with random weights."""
    return WhisperEncoder(WhisperConfig(**_document(path)["audio_config"]))


def llama(path: Path) -> Any:
    """Returns the reference decoder of a checkpoint's configuration, with random weights."""
    return LlamaForCausalLM(LlamaConfig(**_document(path)["text_config"]))


def _document(path: Path) -> Any:
    return json.loads((path / "config.json").read_text())


def _config(norm_mid: bool) -> dict[str, Any]:
    return {
        "architectures": ["UltravoxModel"],
        "model_type": "ultravox",
        "torch_dtype": "float32",
        "audio_model_id": None,
        "text_model_id": None,
        "audio_token_index": AUDIO_TOKEN_ID,
        "hidden_size": PROJECTOR,
        "stack_factor": STACK,
        "projector_act": "swiglu",
        "projector_ln_mid": norm_mid,
        "audio_config": {
            "model_type": "whisper",
            "d_model": WIDTH,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "encoder_layers": 2,
            "max_source_positions": 50 * CHUNK_SECONDS,
            "num_mel_bins": MEL_BINS,
        },
        "text_config": {
            "model_type": "llama",
            **TINY_DECODER,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_scaling": LLAMA3_ROPE,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": False,
            "bos_token_id": TOKEN_IDS["<|begin_of_text|>"],
            "eos_token_id": TOKEN_IDS["<|eot_id|>"],
        },
    }


def _weights(draw: Draw, norm_mid: bool, readable: list[int]) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = {}
    for name in ("model.embed_tokens", "lm_head"):
        weights |= {f"language_model.{key}": each for key, each in draw.vocabulary(name, 64, readable)}
    for layer in ("language_model.model.layers.0", "language_model.model.layers.1"):
        for name, rows, columns, gain in (
            ("self_attn.q_proj", 64, 64, 1.5),
            ("self_attn.k_proj", 32, 64, 1.5),
            ("self_attn.v_proj", 32, 64, 1),
            ("self_attn.o_proj", 64, 64, 4),
        ):
            weights |= dict(draw.linear(f"{layer}.{name}", rows, columns, gain=gain, bias=False))
        weights |= dict(draw.mlp(f"{layer}.mlp", 64, 96))
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights |= dict(draw.norm(f"{layer}.{name}", 64))
    weights |= dict(draw.norm("language_model.model.norm", 64))
    for name, width_in in (("conv1", MEL_BINS), ("conv2", WIDTH)):
        weights |= dict(draw.linear(f"audio_tower.{name}", WIDTH, 3 * width_in, gain=1.5))
        weights[f"audio_tower.{name}.weight"] = weights[f"audio_tower.{name}.weight"].view(WIDTH, width_in, 3)
    weights["audio_tower.embed_positions.weight"] = 0.3 * torch.randn(
        50 * CHUNK_SECONDS, WIDTH, generator=draw.generator
    )
    for layer in ("audio_tower.layers.0", "audio_tower.layers.1"):
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights |= dict(draw.linear(f"{layer}.self_attn.{name}", WIDTH, WIDTH, gain=1.5, bias=name != "k_proj"))
        weights |= dict(draw.linear(f"{layer}.fc1", 64, WIDTH)) | dict(draw.linear(f"{layer}.fc2", WIDTH, 64))
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            weights |= dict(draw.norm(f"{layer}.{name}", WIDTH, bias=True))
    weights |= dict(draw.norm("audio_tower.layer_norm", WIDTH, bias=True))
    projector = "multi_modal_projector"
    weights |= dict(draw.linear(f"{projector}.linear_1", PROJECTOR, STACK * WIDTH, gain=1.5, bias=False))
    weights |= dict(draw.linear(f"{projector}.linear_2", 64, PROJECTOR // 2, gain=0.5, bias=False))
    weights |= dict(draw.norm(f"{projector}.ln_pre", STACK * WIDTH))
    weights |= dict(draw.norm(f"{projector}.{'ln_mid' if norm_mid else 'ln_post'}", PROJECTOR // 2 if norm_mid else 64))
    return weights
