"""Gemma 4: the decoder alone, and with images.

Numerics follow transformers' models/gemma4/modeling_gemma4.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Gemma4VisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.models.decoder_weights import layer_index
from glimpse.engine.worker.models.encoders.gemma4_vision import TOWER, Gemma4VisionTower, reorder_planar_heads
from glimpse.engine.worker.models.model import Model

_ROUTER = {"proj.weight": "gate.weight", "per_expert_scale": "factors"}
_AUDIO = ("audio_tower.", "embed_audio.")


class Gemma4(Model):
    """A decoder whose last layers attend to the keys and values of earlier ones, and an encoder of images."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "model.",
        **{f"model.{part}": part for part in (TOWER, "embed_vision.", *_AUDIO)},
    }

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        is_rotated = name.startswith(TOWER) and any(part in name for part in (".q_proj.l", ".k_proj.l", ".q_n", ".k_n"))
        if is_rotated and isinstance(self.encoder, Gemma4VisionTower):
            return [(name, reorder_planar_heads(tensor, self.encoder.config.head_dim))]
        # Names of the experts are those of other families.
        layer, _, member = name.partition(".router.")
        if member == "scale":
            return [(f"{layer}.mlp.router_norm.weight", tensor.float() * text.hidden_size**-0.5)]
        if member in _ROUTER:
            return [(f"{layer}.mlp.{_ROUTER[member]}", tensor)]
        return super().split_weight(name.replace(".experts.", ".mlp.experts."), tensor, text)

    def is_unused(self, name: str) -> bool:
        if super().is_unused(name) or name.startswith(_AUDIO):
            return True
        # Checkpoints have the projections of all layers, also of those that use the keys and values of others.
        if not name.startswith(f"{self.decoder_prefix}model.layers.") or ".self_attn." not in name:
            return False
        index = layer_index(name)
        is_of_cache = name.rpartition(".self_attn.")[2].startswith(("k_", "v_"))
        return is_of_cache and self.decoder.config.cache_layer(index) != index


def make_model(_path: Path, config: ModelConfig) -> Model:
    """Returns the checkpoint's model without its weights."""
    if config.encoder is None:
        return Gemma4(config.text)
    return Gemma4(config.text, Gemma4VisionTower(config.encoder_as(Gemma4VisionConfig), config.text.hidden_size))
