"""The oracle of tests: transformers' LFM2-VL. The engine never imports this.

Its image processor is in a module that requires torchvision. What calculates sizes there does not, so the module is
imported without it; resizing is torch's, which torchvision calls.
"""

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn import functional
from transformers import Lfm2VlProcessor

from glimpse.engine.protocol.media import MediaSpan
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles
from tests.oracles.answers import Answer, generate, load_oracle

Pixels = npt.NDArray[np.uint8]


@torch.inference_mode()
def greedy_answer(
    path: Path, prompt: Sequence[int], spans: Sequence[MediaSpan], images: Sequence[Pixels], num_tokens: int
) -> Answer:
    """Continues a prompt with images, the patches of each as `FlexTiles` has them."""
    tiles = [tile for span, patches in zip(spans, images, strict=True) for tile in tiles_of(patches, span.grid)]
    media: dict[str, Any] = {}
    if tiles:
        longest = max(tile[..., 0, 0, 0].size for tile in tiles)
        values = torch.zeros(len(tiles), longest, tiles[0][0, 0].size)
        mask = torch.zeros(len(tiles), longest, dtype=torch.int32)
        for index, tile in enumerate(tiles):
            patches = torch.from_numpy(tile.copy()).flatten(0, 1).flatten(1)
            values[index, : len(patches)] = patches / 127.5 - 1
            mask[index, : len(patches)] = 1
        shapes = torch.tensor([tile.shape[:2] for tile in tiles])
        media = {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    return generate(load_oracle(path), prompt, num_tokens, **media)


def tiles_of(patches: Pixels, grid: Sequence[int]) -> list[Pixels]:
    """Returns the tiles of an image and its overview, as rows and columns of patches."""
    rows, columns, side, own_rows, own_columns = grid
    cut = patches[: rows * columns * side**2].reshape(rows, side, columns, side, *patches.shape[1:])
    tiles = list(cut.swapaxes(1, 2).reshape(rows * columns, side, side, *patches.shape[1:]))
    overview = patches[rows * columns * side**2 :].reshape(own_rows, own_columns, *patches.shape[1:])
    return [*tiles, overview] if own_rows else tiles


@cache
def image_processor() -> Any:
    """Returns an image processor that can calculate sizes, without parameters of its own."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    with pytest.MonkeyPatch.context() as patch:
        for name in (*names, "torchvision.transforms.v2.functional"):
            patch.setitem(sys.modules, name, ModuleType(name))
        module = import_module("transformers.models.lfm2_vl.image_processing_lfm2_vl")
    return object.__new__(module.Lfm2VlImageProcessor)


def grid_of(height: int, width: int, sizing: FlexTiles) -> tuple[int, ...]:
    """Returns the grid of `FlexTiles`, from the reference's sizes."""
    reference, patch = image_processor(), sizing.patch_size
    bounds = {
        "downsample_factor": sizing.merge_size,
        "max_image_tokens": sizing.max_tokens,
        "encoder_patch_size": patch,
    }
    own_width, own_height = reference.smart_resize(height, width, min_image_tokens=sizing.min_tokens, **bounds)
    own = (own_height // patch, own_width // patch)
    if not reference._is_image_too_large(height, width, max_pixels_tolerance=sizing.tolerance, **bounds):
        return (0, 0, 0, *own)
    tiles = (sizing.min_tiles, sizing.max_tiles, sizing.tile)
    columns, rows, *_ = reference._get_grid_layout(height, width, *tiles)
    return (rows, columns, sizing.tile // patch, *(own if sizing.has_overview else (0, 0)))


def text_of(grid: Sequence[int]) -> str:
    """Returns the text that the reference writes for an image."""
    rows, columns, side, own_rows, own_columns = grid
    processor: Any = object.__new__(Lfm2VlProcessor)
    processor.image_token, processor.image_thumbnail_token = "<image>", "<|img_thumbnail|>"
    processor.image_start_token, processor.image_end_token = "<|image_start|>", "<|image_end|>"
    runs = (side**2 // 4, own_rows * own_columns // 4)
    return processor._build_image_tokens(rows or 1, columns or 1, *runs, own_rows > 0, True)


def resized(image: Pixels, height: int, width: int) -> Pixels:
    """Returns an image, [height, width, 3], as torchvision resizes it."""
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None]
    found = functional.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return found[0].permute(1, 2, 0).numpy()
