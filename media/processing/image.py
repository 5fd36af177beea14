"""Image preprocessing: resized uint8 pixels, as the recipe of the model family says, their grid and content key.

The engine normalizes the pixels and cuts them into patches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL.Image import Resampling

from glimpse.media.containers.still import load_pixels
from glimpse.media.key import content_key
from glimpse.media.kind import MediaKind
from glimpse.media.processing.preprocessor import check_processor, positive, read_image_processor
from glimpse.media.processing.render import render
from glimpse.media.processing.rgb import Colour, orientation_of, upright_rgb
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.any_res import AnyRes
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.hd_tiles import HdTiles
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles
from glimpse.media.processing.sizing.patches.longest_edge import LongestEdge
from glimpse.media.processing.sizing.patches.page_tiles import PageTiles
from glimpse.media.processing.sizing.patches.patch_budget import PatchBudget
from glimpse.media.processing.sizing.placement import SIDEWAYS, ImagePlacement, ImageSource
from glimpse.media.processing.sizing.recipe import Detail
from glimpse.media.processing.sizing.smart_resize import LARGEST_MAX_PIXELS, SmartResize
from glimpse.media.processing.sizing.split_tiles import SplitTiles
from glimpse.media.processing.sizing.views import ImagePlan, Size

ImageSizing: TypeAlias = (
    SmartResize
    | SplitTiles
    | FixedSize
    | AnyRes
    | AspectTiles
    | AdaptiveSlices
    | HdTiles
    | LongestEdge
    | PatchBudget
    | FlexTiles
    | PageTiles
)
"""The recipes of all families: a closed union, since decoding workers parse it."""


_QWEN2_VL = SmartResize()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProcessing:
    """A checkpoint's image preprocessing parameters, by default Qwen2-VL's."""

    sizing: ImageSizing = field(default_factory=SmartResize)
    resampling: Resampling = Resampling.BICUBIC
    """Filter for resizing: BILINEAR, BICUBIC or LANCZOS."""
    background: Colour = (255, 255, 255)
    """RGB color behind transparent pixels."""
    fast_jpeg: bool = False
    """Decodes a JPEG of more than twice the target width and height at 1/2, 1/4 or 1/8 of its size: faster, but with
    slightly different pixels."""
    checkpoint_max_pixels: int | None = None
    """The bound in the checkpoint's own file, if `sizing` has a lower one."""

    def with_options(
        self,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        detail: Detail = Detail.AUTO,
        background: Colour | None = None,
        is_alone: bool = True,
    ) -> "ImageProcessing":
        """Returns a copy with a request's options, and for an image that is not the only one of a prompt.

        Raises:
            MediaError: INVALID_PARAMETER if requested bounds are out of range or contradict each other, or if the
                recipe has none.
        """
        if detail is Detail.ORIGINAL and max_pixels is None:
            max_pixels = self.checkpoint_max_pixels
        sizing = self.sizing.with_bounds(min_pixels=min_pixels, max_pixels=max_pixels)
        sizing = sizing.low_detail() if detail is Detail.LOW else sizing
        sizing = sizing if is_alone else sizing.among_others()
        return replace(self, sizing=sizing, background=background or self.background)

    def place(self, source: ImageSource) -> ImagePlacement:
        """Returns what becomes of an image file. Raises MediaError: the model cannot read images of this size."""
        return ImagePlacement(source=source, plan=self.sizing.plan(*source.upright))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """A preprocessed image."""

    kind: MediaKind = field(default=MediaKind.IMAGE, init=False)
    pixels: npt.NDArray[np.uint8]
    """RGB [height, width, 3] or [tiles, height, width, 3], resized, read-only. Some recipes' tiles are patches."""
    grid: tuple[int, ...]
    """Grid of the recipe. Qwen's: patches in time, height and width, before merging."""
    key: bytes
    """Content key: SHA-256 of the pixels and of the recipe's parameters for the encoder."""
    placement: ImagePlacement
    """Where the pixels are in the image file."""


def image_processing(path: Path, default: SmartResize = _QWEN2_VL) -> ImageProcessing:
    """Reads how Qwen's checkpoints process images, in the format of the published ones or transformers 5.

    Args:
        default: values of fields that the file leaves out. Its `max_pixels` is a limit on the checkpoint's, too.

    Raises:
        ValueError: The file is missing, is not JSON, or has unsupported values.
    """
    config = read_image_processor(path)
    check_processor(config)
    size: Mapping[str, Any] = config.get("size") or {}
    own_min = config.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    own_max = config.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge") or default.max_pixels
    max_pixels = min(positive("max_pixels", own_max), default.max_pixels)
    return ImageProcessing(
        sizing=SmartResize(
            patch_size=positive("patch_size", config.get("patch_size", default.patch_size)),
            merge_size=positive("merge_size", config.get("merge_size", default.merge_size)),
            temporal_patch_size=positive(
                "temporal_patch_size", config.get("temporal_patch_size", default.temporal_patch_size)
            ),
            min_pixels=min(positive("min_pixels", own_min or default.min_pixels), max_pixels),
            max_pixels=max_pixels,
        ),
        checkpoint_max_pixels=min(own_max, LARGEST_MAX_PIXELS) if own_max > max_pixels else None,
    )


def prepare_image(
    image: PIL.Image.Image,
    processing: ImageProcessing,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_decoded_pixels: int | None = None,
) -> Image:
    """Preprocesses an image of any mode, size and EXIF orientation. The arguments are those of `image_pixels`.

    Raises:
        MediaError: The image is corrupt, too elongated or of an unsupported mode; or the bounds are invalid.
    """
    bounds = processing.with_options(min_pixels=min_pixels, max_pixels=max_pixels)
    return image_from_pixels(*image_pixels(image, bounds, max_decoded_pixels=max_decoded_pixels), bounds)


def image_pixels(
    image: PIL.Image.Image, processing: ImageProcessing, *, max_decoded_pixels: int | None = None
) -> tuple[npt.NDArray[np.uint8], ImagePlacement]:
    """Returns the pixels of an image, upright and resized as in `Image`, and where they come from.

    Args:
        processing: Parameters with the request's bounds.
        max_decoded_pixels: See `load_pixels`.

    Raises:
        MediaError: Like `prepare_image`.
    """
    (width, height), enough = image.size, None
    if processing.fast_jpeg:
        orientation = orientation_of(image)
        plan = processing.place(ImageSource(width=width, height=height, orientation=orientation)).plan
        upright_height, upright_width = _largest(plan)
        is_sideways = orientation in SIDEWAYS
        enough = (upright_height, upright_width) if is_sideways else (upright_width, upright_height)
    load_pixels(image, max_pixels=max_decoded_pixels, enough=enough)
    placement = processing.place(ImageSource(width=width, height=height, orientation=orientation_of(image)))
    pixels = render(upright_rgb(image, processing.background), placement.plan, processing.resampling)
    pixels.flags.writeable = False
    return pixels, placement


def _largest(plan: ImagePlan) -> Size:
    """Returns the largest height and width to which the image itself is resized."""
    sizes = [view.resized for view in plan.views if view.source is None]
    return max(height for height, _ in sizes), max(width for _, width in sizes)


def image_from_pixels(pixels: npt.NDArray[np.uint8], placement: ImagePlacement, processing: ImageProcessing) -> Image:
    """Adds the content key to the pixels and the placement of `image_pixels`."""
    grid = placement.plan.grid
    key = content_key("image", pixels, *processing.sizing.key_parameters(grid))
    return Image(pixels=pixels, grid=grid, key=key, placement=placement)
