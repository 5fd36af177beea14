"""The base of encoders of square tiles of one size, which encode images and videos of a step tile by tile; and how
patches become tiles, and squares of patches tokens."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.encoders.intern_vit import InternVit
from glimpse.engine.worker.models.encoders.vit import VisionTransformer
from glimpse.engine.worker.tensors.transfer import upload_bytes


class TileEncoder(Encoder):
    """A vision transformer of tiles; subclasses add what makes rows of its features."""

    def __init__(self, tower: VisionTransformer | InternVit, *, max_batch_tiles: int | None = None) -> None:
        """`max_batch_tiles`: most tiles encoded at once, which bounds the memory of hidden states; None: no bound."""
        super().__init__()
        self.tower = tower
        self.max_batch_tiles = max_batch_tiles

    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns for each image or video the rows of one tile or frame after the other.

        Args:
            media: at least one; pixels are uint8 [tiles, image_size, image_size, 3], row-major.
        """
        parts = self.features(media, ops)
        # Copies if there are several: a view would keep all outputs in memory until the last is evicted.
        return [part.flatten(0, 1).clone() if len(parts) > 1 else part.flatten(0, 1) for part in parts]

    def features(self, media: Sequence[Encode], ops: Ops) -> Sequence[Tensor]:
        """Returns for each medium a view of the rows of its tiles, [tiles, rows of a tile, hidden_size]."""
        side, device = self.tower.config.image_size, self.tower.position_embedding.device
        tiles = [upload_bytes(medium.data, device).view(-1, side, side, 3) for medium in media]
        pixels = torch.cat(tiles)
        batches = pixels.split(self.max_batch_tiles or len(pixels))
        return torch.cat([self(batch, ops) for batch in batches]).split([len(each) for each in tiles])

    @abstractmethod
    def forward(self, tiles: Tensor, ops: Ops) -> Tensor:
        """uint8 [tiles, image_size, image_size, 3] → [tiles, rows of a tile, hidden_size]"""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Encoder.named_weights`."""
        return self.tower.named_weights()

    def is_unused(self, name: str) -> bool:
        """See `Encoder.is_unused`."""
        return self.tower.is_unused(name)


def shuffle_pixels(features: Tensor, columns: int, shuffle: int) -> Tensor:
    """Joins the features of each square of patches.

    Args:
        features: [tiles, rows · columns, width]
        columns: patches in a row of a tile.
        shuffle: patches along each side of a square.

    Returns:
        [tiles, rows / shuffle · columns / shuffle, shuffle² · width], squares and the patches in them row by row.
    """
    squares = features.unflatten(1, (-1, shuffle, columns // shuffle, shuffle)).transpose(2, 3)
    return squares.flatten(3).flatten(1, 2)


def join_patches(patches: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Joins patches to images of equal size.

    Args:
        patches: [patches, side, side, 3], of all images together row by row.
        grid: rows and columns of images.
        size: rows and columns of patches in an image.

    Returns:
        [images, height, width, 3], row by row.
    """
    (rows, columns), (own_rows, own_columns), side = grid, size, patches.shape[1]
    split = patches.view(rows, own_rows, columns, own_columns, side, side, 3)
    return split.permute(0, 2, 1, 4, 3, 5, 6).reshape(rows * columns, own_rows * side, own_columns * side, 3)
