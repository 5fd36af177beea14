"""Encoders of square tiles of one size: images and videos of a step are encoded tile by tile."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.tensors.transfer import upload_bytes


def encode_tiles(
    media: Sequence[Encode],
    encode: Callable[[Tensor], Tensor],
    *,
    side: int,
    max_batch_tiles: int,
    device: torch.device,
) -> list[Tensor]:
    """Returns the encoder output of each image or video, with the rows of one tile or frame after the other.

    Args:
        media: at least one; pixels are uint8 [tiles, side, side, 3], row-major.
        encode: encodes uint8 [tiles, side, side, 3] to [tiles, rows, hidden_size].
        side: of a tile in pixels.
        max_batch_tiles: most tiles encoded at once, which bounds the memory of hidden states.
        device: of the encoder's weights.
    """
    tiles = [upload_bytes(medium.data, device).view(-1, side, side, 3) for medium in media]
    encoded = torch.cat([encode(batch) for batch in torch.cat(tiles).split(max_batch_tiles)])
    parts = encoded.split([len(each) for each in tiles])  # [tiles, rows of a tile, hidden_size] each
    # Copies if there are several: a view would keep all outputs in memory until the last is evicted.
    return [part.flatten(0, 1).clone() if len(parts) > 1 else part.flatten(0, 1) for part in parts]


def shuffle_pixels(features: Tensor, side: int, shuffle: int) -> Tensor:
    """Joins the features of each square of patches.

    Args:
        features: [tiles, side², width]
        side: patches along each side of a tile.
        shuffle: patches along each side of a square.

    Returns:
        [tiles, (side / shuffle)², shuffle² · width], squares and the patches in them row by row.
    """
    squares = features.unflatten(1, (side // shuffle, shuffle, side // shuffle, shuffle)).transpose(2, 3)
    return squares.flatten(3).flatten(1, 2)
