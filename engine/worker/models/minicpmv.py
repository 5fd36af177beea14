"""MiniCPM-V 2.6 (arXiv 2408.01800), 4.0, 4.5 and 4.6: a decoder that reads an image as an overview and slices.

SigLIP encodes each slice at its own size. In 4.6 it merges patches on the way, and a last merger makes an embedding of
each square; numerics follow transformers' models/minicpmv4_6/modeling_minicpmv4_6.py. In the others, a resampler makes
equally many embeddings of each slice; numerics follow vLLM's `MiniCPMV2_6` (model_executor/models/minicpmv.py).
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.encoders import MergedVisionConfig, ResampledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.pixels import PixelStatistics, read_statistics
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.gelu_mlp import GeluMLP
from glimpse.engine.worker.models.encoders.resampler import Resampler
from glimpse.engine.worker.models.encoders.tiles import join_patches, shuffle_pixels
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.models.encoders.window_merger import SIDE, WindowMerger
from glimpse.engine.worker.models.model import Model, with_decoder
from glimpse.engine.worker.tensors.transfer import upload_bytes
from glimpse.media.kind import MediaKind
from glimpse.media.processing.preprocessor import read_image_processor

_TOWER = "vision_tower."
"""What checkpoints of 4.6 put before the names of the encoder's tensors."""


class MiniCPMV(Model):
    """A decoder and an encoder, with the names of tensors in MiniCPM-V's checkpoints."""

    decoder_prefix: ClassVar = "llm."
    renamed_prefixes: ClassVar = with_decoder(decoder_prefix, {"lm_head.": "llm.lm_head."})


class MiniCPMV4_6(Model):  # noqa: N801 - the model's name
    """A decoder and an encoder, with the names of tensors in MiniCPM-V 4.6's checkpoints."""

    renamed_prefixes: ClassVar = {
        "model.language_model.": "model.",
        "model.vision_tower.": "vision_tower.",
        "model.merger.": "merger.",
    }


class SliceEncoder(Encoder):
    """SigLIP for slices of any size; subclasses make rows of its features."""

    def __init__(self, tower: VisionTransformer, max_batch_slices: int) -> None:
        super().__init__()
        self.tower = tower
        self.max_batch_slices = max_batch_slices

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the encoder output of each medium: the rows of an image's overview, then of its slices, row by row;
        or of each pack of a video's frames.

        Args:
            media: pixels are uint8 [patches, patch_size, patch_size, 3] of images, as in `AdaptiveSlices`, and uint8
                [frames, height, width, 3] of videos, as in `ScaledFrames`.
        """
        return [
            self._encode_video(medium, ops) if medium.kind is MediaKind.VIDEO else self._encode_image(medium, ops)
            for medium in media
        ]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        return self.tower.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`."""
        return self.tower.is_unused(name)

    def _encode_image(self, medium: Encode, ops: Ops) -> Tensor:
        own_rows, own_columns, rows, columns, slice_rows, slice_columns = medium.grid
        side = self.tower.config.patch_size
        patches = upload_bytes(medium.data, self.tower.position_embedding.device).view(-1, side, side, 3)
        overview, slices = patches.split([own_rows * own_columns, len(patches) - own_rows * own_columns])
        encoded = self._encode_slices(join_patches(overview, (1, 1), (own_rows, own_columns)), ops)
        if rows:
            images = join_patches(slices, (rows, columns), (slice_rows, slice_columns))
            batches = images.split(self.max_batch_slices)
            encoded = torch.cat([encoded, *(self._encode_slices(batch, ops) for batch in batches)])
        return encoded

    def _encode_video(self, medium: Encode, ops: Ops) -> Tensor:
        num_frames, rows, columns, *times = medium.grid
        side, device = self.tower.config.patch_size, self.tower.position_embedding.device
        frames = upload_bytes(medium.data, device).view(num_frames, rows * side, columns * side, 3)
        packed, ids = (times[0], torch.tensor(times[1:], device=frames.device)) if times else (1, None)
        most = max(packed, self.max_batch_slices // packed * packed)  # whole packs
        encoded = [
            self._encode_slices(batch, ops, None if ids is None else ids[start : start + most], packed)
            for start, batch in zip(range(0, num_frames, most), frames.split(most), strict=True)
        ]
        return torch.cat(encoded)

    @abstractmethod
    def _encode_slices(self, images: Tensor, ops: Ops, times: Tensor | None = None, packed: int = 1) -> Tensor:
        """uint8 [images, height, width, 3] → the rows of all slices or packs, [rows, hidden_size]"""

    def _size(self, images: Tensor) -> tuple[int, int]:
        """Returns the rows and columns of patches of images, [images, height, width, 3]."""
        side = self.tower.config.patch_size
        return images.shape[1] // side, images.shape[2] // side

    def _positions(self, images: Tensor) -> Tensor:
        """Returns the embeddings of the positions of patches, [patches of an image, width]."""
        nearest = nearest_positions(*self._size(images), self.tower.config.side, images.device)
        return self.tower.position_embedding[nearest]


class ResampledEncoder(SliceEncoder):
    """SigLIP and the resampler."""

    def __init__(self, config: ResampledVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(VisionTransformer(config.vit, statistics, "vpm."), config.max_batch_slices)
        self.resampler = Resampler(
            num_queries=config.num_queries,
            num_heads=config.num_heads,
            features=config.vit.width,
            width=hidden_size,
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from prefixed("resampler.", self.resampler.named_weights())

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`; the resampler's positions are calculated."""
        return name == "resampler.pos_embed" or super().is_unused(name)

    def _encode_slices(self, images: Tensor, ops: Ops, times: Tensor | None = None, packed: int = 1) -> Tensor:
        features = self.tower(images, ops, self._positions(images))
        return self.resampler(features, self._size(images), times, packed).flatten(0, 1)


class MergedEncoder(SliceEncoder):
    """SigLIP with a merger among its layers, and the last merger."""

    def __init__(self, config: MergedVisionConfig, hidden_size: int, statistics: PixelStatistics) -> None:
        super().__init__(VisionTransformer(config.vit, statistics, _TOWER), config.max_batch_slices)
        self.num_layers_before = config.num_layers_before
        self.window_merger = WindowMerger(config.vit)
        width = SIDE**2 * config.vit.width
        self.merger = GeluMLP(width, width, hidden_size, norm=nn.LayerNorm(width, eps=1e-6))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        yield from super().named_weights()
        yield from prefixed(f"{_TOWER}vit_merger.", self.window_merger.named_weights())
        yield from prefixed("merger.mlp.0.", self.merger.named_weights(norm="pre_norm"))

    def _encode_slices(self, images: Tensor, ops: Ops, times: Tensor | None = None, packed: int = 1) -> Tensor:
        assert times is None
        assert packed == 1
        _, columns = self._size(images)
        hidden = self.tower.compute(self.tower.embed(images, self._positions(images)), ops, 0, self.num_layers_before)
        merged = self.window_merger(hidden, columns, ops)
        features = self.tower.finish(self.tower.compute(merged, ops, self.num_layers_before))
        squares = shuffle_pixels(features, columns // SIDE, SIDE)
        return self.merger(squares.flatten(0, 1), ops)


def nearest_positions(rows: int, columns: int, side: int, device: torch.device) -> Tensor:
    """Returns the learned position of each patch, int64 [rows · columns]: that of the cell of a grid of side² positions
    in which the patch's upper left corner lies if both grids cover the image."""
    # In float32, as the reference implementation rounds it.
    edges = torch.arange(1 / side, 1.0, 1 / side)
    row, column = (torch.bucketize(torch.arange(n) / n, edges, right=True) for n in (rows, columns))
    return (row[:, None] * side + column).flatten().to(device)


def make_model(path: Path, config: ModelConfig) -> MiniCPMV | MiniCPMV4_6:
    """See `build_model.make_model`."""
    if isinstance(config.encoder, MergedVisionConfig):
        return MiniCPMV4_6(config.text, MergedEncoder(config.encoder, config.text.hidden_size, read_statistics(path)))
    vision = config.encoder_as(ResampledVisionConfig)
    encoder = ResampledEncoder(vision, config.text.hidden_size, _read_statistics(path))
    return MiniCPMV(config.text, encoder)


def _read_statistics(path: Path) -> PixelStatistics:
    """Reads the statistics, which the processor names differently from other models'."""
    processor = read_image_processor(path)
    values = [processor.get(name, [0.5, 0.5, 0.5]) for name in ("norm_mean", "norm_std")]
    if any(len(value) != 3 for value in values):
        raise CheckpointError(f"preprocessor_config.json: expected three numbers in 'norm_mean', 'norm_std': {values}")
    mean, std = map(tuple, values)
    return PixelStatistics(mean=mean, std=std)
