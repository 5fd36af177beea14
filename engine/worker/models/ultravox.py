"""Ultravox (github.com/fixie-ai/ultravox): a decoder that hears through Whisper's encoder.

Whisper's encoder reads chunks of 30 s, and stacked positions are projected to the decoder's width. Numerics follow
vLLM's `UltravoxModel` and `UltravoxFeedForwardProjector` (model_executor/models/ultravox.py), and the published
processor where audio is longer than a chunk: further chunks are padded with zeros to whole ones. Their last token sees
the encoder's output for a few positions of that padding, which are therefore computed here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import UltravoxConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.models.encoders.whisper import WhisperEncoder
from glimpse.engine.worker.models.model import Model

_EPS = 1e-6


class Ultravox(Model):
    """A decoder and an encoder, with the names of tensors in Ultravox's checkpoints."""

    renamed_prefixes: ClassVar = {
        "audio_tower.model.encoder.": "audio_tower.",
        # Files of the decoder's own checkpoint may lie in the folder as they are.
        "model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }
    decoder_prefix: ClassVar = "language_model."


class UltravoxEncoder(WhisperEncoder):
    """Whisper's encoder, for one chunk of an audio input at a time, and the projection."""

    def __init__(self, config: UltravoxConfig, hidden_size: int) -> None:
        super().__init__(config.audio)
        self.config = config
        self.projector = UltravoxProjector(config, hidden_size)

    def encode_audio(self, spectrum: Tensor, ops: Ops) -> Tensor:
        """[mel bins, frames] → [`UltravoxConfig.num_tokens` of the frames, hidden_size of the decoder]"""
        chunks = spectrum.split(self.config.chunk_frames, dim=1)
        return torch.cat([self._encode_chunk(chunk, index > 0, ops) for index, chunk in enumerate(chunks)])

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from self.projector.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`. Whole Whisper checkpoints have a decoder too."""
        return name.startswith(("audio_tower.model.", "audio_tower.proj_out."))

    def _encode_chunk(self, spectrum: Tensor, is_continuation: bool, ops: Ops) -> Tensor:
        """[mel bins, frames] → [tokens, hidden_size]"""
        num_frames, stack = spectrum.shape[1], self.config.stack_factor
        num_keys = -(-num_frames // 2)
        num_tokens, num_positions = -(-num_keys // stack), num_keys
        if is_continuation:
            num_positions = min(num_tokens * stack, self.config.audio.max_positions)
            spectrum = functional.pad(spectrum, (0, 2 * num_positions - num_frames))
        hidden = self.layer_norm(self(spectrum, num_positions, num_keys, ops))
        hidden = functional.pad(hidden, (0, 0, 0, num_tokens * stack - num_positions))
        return self.projector(hidden.view(num_tokens, -1), ops)


class UltravoxProjector(nn.Module):
    """Norm, product, SwiGLU whose gate is the second half, and product; a second norm before or after the last one."""

    def __init__(self, config: UltravoxConfig, hidden_size: int) -> None:
        super().__init__()
        stacked, middle = config.audio.width * config.stack_factor, config.projector_size // 2
        self.ln_pre = RMSNorm(stacked, eps=_EPS)
        self.linear_1 = Linear(stacked, config.projector_size, bias=False)
        self.ln_mid = RMSNorm(middle, eps=_EPS) if config.norm_mid else None
        self.linear_2 = Linear(middle, hidden_size, bias=False)
        self.ln_post = None if config.norm_mid else RMSNorm(hidden_size, eps=_EPS)

    def forward(self, stacked: Tensor, ops: Ops) -> Tensor:
        """[tokens, stack_factor · width] → [tokens, hidden_size]"""
        values, gate = ops.norm_linear(stacked, self.ln_pre, self.linear_1).chunk(2, dim=-1)
        inner = functional.silu(gate) * values
        if self.ln_mid is not None:
            return ops.norm_linear(inner, self.ln_mid, self.linear_2)
        assert self.ln_post is not None
        return self.ln_post(ops.linear_add(inner, self.linear_2, None))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights with their checkpoint names."""
        for name in ("linear_1", "linear_2"):
            yield from getattr(self, name).named_weights(f"multi_modal_projector.{name}")
        for name in ("ln_pre", "ln_mid", "ln_post"):
            norm = getattr(self, name)
            if norm is not None:
                yield f"multi_modal_projector.{name}.weight", norm.weight.data


def make_model(_path: Path, config: ModelConfig) -> Ultravox:
    """Returns the checkpoint's model without its weights."""
    return Ultravox(config.text, UltravoxEncoder(config.encoder_as(UltravoxConfig), config.text.hidden_size))
