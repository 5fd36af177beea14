"""Qwen2-Audio (arXiv 2407.10759): Qwen2's decoder with an audio encoder.

Numerics follow transformers' `Qwen2AudioForConditionalGeneration` (models/qwen2_audio/modeling_qwen2_audio.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from glimpse.engine.layers.ops import Ops, TorchOps
from glimpse.engine.model_config import AudioConfig, TextConfig
from glimpse.engine.models.qwen2 import Decoder, text_positions
from glimpse.engine.models.qwen2_audio_tower import AudioTower
from glimpse.engine.plan import MediaSpan
from glimpse.engine.tensors.batch import Batch, SequenceLayout
from glimpse.engine.tensors.kv_cache import KVCache


class Qwen2Audio(nn.Module):
    """The model. Parameters are uninitialized until loaded through `named_weights`."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.audio_tower.": "audio_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    }
    """Prefixes of tensor names in transformers 5 → those in published checkpoints."""

    def __init__(self, text: TextConfig, audio: AudioConfig) -> None:
        super().__init__()
        self.ops: Ops = TorchOps()
        """Backend of the layers; replaced when a backend repacks the weights."""
        self.decoder_ops: Ops | None = None
        """Replaces `ops` in the decoder if this process holds only a shard of its weights."""
        self.tower = AudioTower(audio, text.hidden_size)
        self.decoder = Decoder(text)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """As `Decoder.forward`, with the encoder outputs of `encode`."""
        return self.decoder(batch, cache, encoder_outputs, self.decoder_ops or self.ops)

    def encode(self, media: Sequence[tuple[memoryview, tuple[int, int, int]]]) -> list[Tensor]:
        """Returns the encoder output of each audio input, one row per placeholder token; see `AudioTower`.

        Args:
            media: for each audio input its features, float32 [mel bins, frames], and (1, mel bins, frames).
        """
        return [self.tower(features, grid_thw[1:], self.ops) for features, grid_thw in media]

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns consecutive positions for all tokens of a prompt, including audio tokens."""
        return SequenceLayout(prompt_positions=text_positions(0, num_tokens), delta=0, spans=tuple(spans))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from ((f"language_model.{name}", tensor) for name, tensor in self.decoder.named_weights())
        yield from self.tower.named_weights()
