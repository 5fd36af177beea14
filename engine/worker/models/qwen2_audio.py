"""Qwen2-Audio (arXiv 2407.10759): Qwen2's decoder with an audio encoder.

Numerics follow transformers' `Qwen2AudioForConditionalGeneration` (models/qwen2_audio/modeling_qwen2_audio.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.models.encoders.whisper import WhisperEncoder
from glimpse.engine.worker.models.model import Model, with_decoder


class Qwen2Audio(Model):
    """A decoder and an encoder, with the names of tensors in Qwen2-Audio's checkpoints."""

    decoder_prefix: ClassVar = "language_model."
    renamed_prefixes: ClassVar = with_decoder(
        decoder_prefix,
        {
            "model.language_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
            "model.audio_tower.": "audio_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
    )


class Qwen2AudioEncoder(WhisperEncoder):
    """Whisper's encoder, with the mean of each two positions projected to the decoder's width."""

    def __init__(self, config: AudioConfig, hidden_size: int) -> None:
        super().__init__(config)
        self.projector = Linear(config.width, hidden_size, bias=True)

    def encode_audio(self, spectrum: Tensor, ops: Ops) -> Tensor:
        """[mel bins, frames] → [frames // 4, hidden_size of the decoder]

        Two frames become one position of the encoder; an odd last frame only contributes to the convolution at the last
        position.
        """
        num_positions = spectrum.shape[1] // 2
        hidden = self(spectrum, num_positions, num_positions, ops)
        pairs = hidden[: num_positions // 2 * 2].unflatten(0, (-1, 2))  # [tokens, 2, width]
        return self.projector(self.layer_norm(pairs.mean(dim=1)))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from self.projector.named_weights("multi_modal_projector.linear")


def make_model(_path: Path, config: ModelConfig) -> Qwen2Audio:
    """Returns the checkpoint's model without its weights."""
    return Qwen2Audio(config.text, Qwen2AudioEncoder(config.encoder_as(AudioConfig), config.text.hidden_size))
