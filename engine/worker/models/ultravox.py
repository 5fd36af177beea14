"""Ultravox (github.com/fixie-ai/ultravox): a decoder that hears through Whisper's encoder.

Numerics follow vLLM's `UltravoxModel` (model_executor/models/ultravox.py).
"""

from pathlib import Path
from typing import ClassVar

from glimpse.engine.checkpoint.model_config.encoders import UltravoxConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.models.encoders.ultravox_tower import UltravoxTower
from glimpse.engine.worker.models.model import Model


class Ultravox(Model):
    """A decoder and an encoder, with the names of tensors in Ultravox's checkpoints."""

    renamed_prefixes: ClassVar = {
        "audio_tower.model.encoder.": "audio_tower.",
        # Files of the decoder's own checkpoint may lie in the folder as they are.
        "model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
    }
    decoder_prefix: ClassVar = "language_model."


def make_model(_path: Path, config: ModelConfig) -> Ultravox:
    """Returns the checkpoint's model without its weights."""
    return Ultravox(config.text, UltravoxTower(config.encoder_as(UltravoxConfig), config.text.hidden_size))
