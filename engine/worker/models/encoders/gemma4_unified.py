"""What Gemma 4 12B has in place of encoders: projections of pixels and of samples of audio.

Numerics follow `Gemma4UnifiedVisionEmbedder` and `Gemma4UnifiedMultimodalEmbedder` of transformers
(models/gemma4_unified/modeling_gemma4_unified.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import PixelsConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.linear import Linear, empty_parameter
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import named_tensors
from glimpse.engine.worker.models.encoders.encoder import Encoder, upload_features
from glimpse.engine.worker.models.encoders.gemma4_vision import unscaled_norm
from glimpse.engine.worker.tensors.transfer import upload_bytes
from glimpse.media.kind import MediaKind


class UnifiedEmbedder(Encoder):
    """Makes a token of each square of pixels, with its row and its column, and of each group of samples."""

    renamed_prefixes: ClassVar[Mapping[str, str]] = {
        "model.embed_vision.multimodal_embedder.": "embed_vision.",
        **{f"model.embed_vision.{part}_": f"vision_embedder.{part}_" for part in ("patch", "pos")},
        "model.vision_embedder.": "vision_embedder.",
    }

    def __init__(self, config: PixelsConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.side = config.patch_size * config.pool_size
        size = 3 * self.side**2
        self.norms = nn.ModuleDict(
            {name: nn.LayerNorm(width) for name, width in zip(_NORMS, (size, config.width, config.width), strict=True)}
        )
        self.dense = Linear(size, config.width, bias=True)
        self.positions = empty_parameter(config.num_positions, 2, config.width)
        self.projection = Linear(config.width, hidden_size, bias=False)
        self.audio = None if config.audio is None else Linear(config.audio.width, hidden_size, bias=False)

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:  # noqa: ARG002
        """See `Encoder.encode`.

        Args:
            media: images and videos as for `Gemma4VisionTower`; audio, float32 [samples of a token, tokens], with grids
                (1, samples of a token, tokens).
            ops: backend.
        """
        return [self._hear(each) if each.kind is MediaKind.AUDIO else self._see(each) for each in media]

    def _hear(self, medium: Encode) -> Tensor:
        """Returns [tokens, hidden_size]."""
        assert self.audio is not None
        assert self.config.audio is not None
        samples = upload_features(medium, self.positions).T.contiguous()
        return self.audio(unscaled_norm(samples, self.config.audio.norm_eps))

    def _see(self, medium: Encode) -> Tensor:
        """Returns [tokens, hidden_size]."""
        (count, *sides), side, table = medium.grid, self.side, self.positions
        rows, columns = (patches // self.config.pool_size for patches in sides)
        pixels = upload_bytes(medium.data, table.device).view(count, rows, side, columns, side, 3)
        squares = pixels.transpose(2, 3).reshape(-1, 3 * side**2).float() / 255
        places = (table[:columns, 0] + table[:rows, 1, None]).flatten(0, 1)  # [tokens of an image, width]
        first, second, last = self.norms.values()
        hidden = second(self.dense(first(squares.to(table.dtype)))) + places.repeat(count, 1)
        return self.projection(unscaled_norm(last(hidden), self.config.norm_eps))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        for name, norm in self.norms.items():
            yield from named_tensors(norm, f"vision_embedder.{name}")
        yield from self.dense.named_weights("vision_embedder.patch_dense")
        yield "vision_embedder.pos_embedding", self.positions.data
        yield from self.projection.named_weights("embed_vision.embedding_projection")
        if self.audio is not None:
            yield from self.audio.named_weights("embed_audio.embedding_projection")


_NORMS = ("patch_ln1", "patch_ln2", "pos_norm")
