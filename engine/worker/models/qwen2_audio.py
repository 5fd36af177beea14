"""Qwen2-Audio (arXiv 2407.10759): Qwen2's decoder with an audio encoder.

Numerics follow transformers' `Qwen2AudioForConditionalGeneration` (models/qwen2_audio/modeling_qwen2_audio.py).
"""

from pathlib import Path
from typing import ClassVar

from glimpse.engine.checkpoint.model_config.encoders import AudioConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.models.encoders.qwen2_audio_tower import AudioTower
from glimpse.engine.worker.models.model import Model


class Qwen2Audio(Model):
    """A decoder and an encoder, with the names of tensors in Qwen2-Audio's checkpoints."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.audio_tower.": "audio_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    }
    decoder_prefix: ClassVar = "language_model."


def make_model(_path: Path, config: ModelConfig) -> Qwen2Audio:
    """Returns the checkpoint's model without its weights."""
    return Qwen2Audio(config.text, AudioTower(config.encoder_as(AudioConfig), config.text.hidden_size))
