"""Gemma 4: the decoder alone, with images and videos, and with audio too.

Numerics follow transformers' models/gemma4/modeling_gemma4.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import Gemma4VisionConfig, PixelsConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.models.decoder_weights import layer_index
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.gemma4_audio import AUDIO_TOWER, Gemma4AudioTower
from glimpse.engine.worker.models.encoders.gemma4_unified import UnifiedEmbedder
from glimpse.engine.worker.models.encoders.gemma4_vision import TOWER, Gemma4VisionTower, reorder_planar_heads
from glimpse.engine.worker.models.model import Model
from glimpse.media.kind import MediaKind

_ROUTER = {"proj.weight": "gate.weight", "per_expert_scale": "factors"}


class Gemma4Encoders(Encoder):
    """Encoders of images and of audio."""

    def __init__(self, images: Gemma4VisionTower, audio: Gemma4AudioTower) -> None:
        super().__init__()
        self.images = images
        self.audio = audio

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """See `Encoder.encode`."""
        rows: dict[int, Tensor] = {}
        for encoder, is_audio in ((self.images, False), (self.audio, True)):
            own = [index for index, medium in enumerate(media) if (medium.kind is MediaKind.AUDIO) == is_audio]
            rows |= zip(own, encoder.encode([media[index] for index in own], ops) if own else (), strict=True)
        return [rows[index] for index in range(len(media))]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from self.images.named_weights()
        yield from self.audio.named_weights()


class Gemma4(Model):
    """A decoder whose last layers attend to the keys and values of earlier ones, and encoders of media."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "model.",
        **UnifiedEmbedder.renamed_prefixes,
        **{f"model.{part}": part for part in (TOWER, "embed_vision.", AUDIO_TOWER, "embed_audio.")},
    }

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        is_rotated = name.startswith(TOWER) and any(part in name for part in (".q_proj.l", ".k_proj.l", ".q_n", ".k_n"))
        if is_rotated and self.encoder is not None:
            vision = next(each for each in self.encoder.modules() if isinstance(each, Gemma4VisionTower))
            return [(name, reorder_planar_heads(tensor, vision.config.head_dim))]
        # Names of the experts are those of other families.
        layer, _, member = name.partition(".router.")
        if member == "scale":
            return [(f"{layer}.mlp.router_norm.weight", tensor.float() * text.hidden_size**-0.5)]
        if member in _ROUTER:
            return [(f"{layer}.mlp.{_ROUTER[member]}", tensor)]
        return super().split_weight(name.replace(".experts.", ".mlp.experts."), tensor, text)

    def is_unused(self, name: str) -> bool:
        if super().is_unused(name):
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
    encoder, width = config.encoder, config.text.hidden_size
    if isinstance(encoder, PixelsConfig):
        return Gemma4(config.text, UnifiedEmbedder(encoder, width))
    encoder = config.encoder_as(Gemma4VisionConfig)
    images = Gemma4VisionTower(encoder, width)
    if encoder.audio is None:
        return Gemma4(config.text, images)
    return Gemma4(config.text, Gemma4Encoders(images, Gemma4AudioTower(encoder.audio, width)))
