"""The oracle of tests: transformers' Whisper encoder and Llama, joined by Ultravox's published formulas.

The engine never imports this. transformers has no Ultravox. The formulas are those of vLLM's
`UltravoxFeedForwardProjector`, and of the published processor for the division into chunks and for tokens.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperFeatureExtractor, models

from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, CHUNK_SECONDS, STACK, llama, whisper_encoder
from tests.oracles.answers import Answer, generate

WhisperEncoder = models.whisper.modeling_whisper.WhisperEncoder

FRAMES = 100 * CHUNK_SECONDS
Samples = npt.NDArray[np.float32]


def features(path: Path, samples: Samples) -> torch.Tensor:
    """Returns the mel frames of an audio input, [mel bins, frames], as the published processor computes them."""
    padded = np.pad(samples, (0, max(0, 320 - len(samples))))
    extracted = WhisperFeatureExtractor.from_pretrained(path)(
        [padded],
        sampling_rate=16_000,
        padding="longest",
        pad_to_multiple_of=160,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    assert extracted.attention_mask.sum() == extracted.input_features.shape[-1]
    return extracted.input_features[0]


@torch.inference_mode()
def audio_rows(path: Path, samples: Samples) -> torch.Tensor:
    """Returns what replaces the embeddings of an audio input's tokens, [tokens, hidden]."""
    frames = features(path, samples)
    starts = range(0, frames.shape[1], FRAMES)
    return torch.cat([_chunk_rows(path, frames[:, start : start + FRAMES], start > 0) for start in starts])


def _chunk_rows(path: Path, frames: torch.Tensor, is_continuation: bool) -> torch.Tensor:
    length = frames.shape[1]
    if is_continuation:
        frames = functional.pad(frames, (0, FRAMES - length))
    encoded = _encode(_encoder(path), frames, (length - 1) // 2 + 1)
    stacked = functional.pad(encoded, (0, 0, 0, -len(encoded) % STACK)).reshape(-1, STACK * encoded.shape[1])
    return _project(_projector(path), stacked)[: -(-length // (2 * STACK))]


def _encode(encoder: Any, frames: torch.Tensor, num_valid: int) -> torch.Tensor:
    """Whisper's encoder without its demand for thirty seconds, and with a mask of padding."""
    waves = functional.gelu(encoder.conv2(functional.gelu(encoder.conv1(frames[None]))))
    hidden = waves.transpose(1, 2) + encoder.embed_positions.weight[: waves.shape[2]]
    mask = torch.where(torch.arange(waves.shape[2]) < num_valid, 0.0, torch.finfo(torch.float32).min)
    for layer in encoder.layers:
        hidden = layer(hidden, mask.expand(1, 1, waves.shape[2], -1))
    return encoder.layer_norm(hidden)[0]


def _project(weights: dict[str, torch.Tensor], stacked: torch.Tensor) -> torch.Tensor:
    values, gate = (_norm(stacked, weights["ln_pre"]) @ weights["linear_1"].T).chunk(2, dim=-1)
    inner = functional.silu(gate) * values
    if "ln_mid" in weights:
        return _norm(inner, weights["ln_mid"]) @ weights["linear_2"].T
    return _norm(inner @ weights["linear_2"].T, weights["ln_post"])


def _norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(values, weight.shape, weight, 1e-6)


class Network(nn.Module):
    """The network of a `config.json`, whose parameters have the published names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        audio, text = config["audio_config"], config["text_config"]
        self.language_model = LlamaForCausalLM(LlamaConfig(**text))
        self.audio_tower = WhisperEncoder(WhisperConfig(**audio))
        width, inner, hidden = config["stack_factor"] * audio["d_model"], config["hidden_size"], text["hidden_size"]
        projector = nn.Module()
        projector.linear_1 = nn.Linear(width, inner, bias=False)
        projector.linear_2 = nn.Linear(inner // 2, hidden, bias=False)
        projector.ln_pre = nn.RMSNorm(width)
        if config["projector_ln_mid"]:
            projector.ln_mid = nn.RMSNorm(inner // 2)
        else:
            projector.ln_post = nn.RMSNorm(hidden)
        self.multi_modal_projector = projector


@cache
def _encoder(path: Path) -> Any:
    encoder = whisper_encoder(path)
    encoder.load_state_dict(_stored(path, "audio_tower."))
    return encoder.eval()


@cache
def _decoder(path: Path) -> Any:
    decoder = llama(path)
    decoder.load_state_dict(_stored(path, "language_model."))
    return decoder.eval()


@cache
def _projector(path: Path) -> dict[str, torch.Tensor]:
    stored = _stored(path, "multi_modal_projector.")
    return {name.removesuffix(".weight"): tensor for name, tensor in stored.items()}


def _stored(path: Path, prefix: str) -> dict[str, torch.Tensor]:
    tensors = load_file(path / "model.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], audio_inputs: Sequence[Samples], num_tokens: int) -> Answer:
    """Continues a prompt with placeholders for the audio inputs, [samples] at 16 kHz each."""
    decoder, input_ids = _decoder(path), torch.tensor([list(prompt)])
    embedded = decoder.get_input_embeddings()(input_ids)
    if audio_inputs:
        embedded[input_ids == AUDIO_TOKEN_ID] = torch.cat([audio_rows(path, each) for each in audio_inputs])
    return generate(decoder, prompt, num_tokens, inputs_embeds=embedded, pad_token_id=0)
