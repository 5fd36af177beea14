"""A picture as the engine takes it: resized pixels, their grid of patches, their content key.

Knows Qwen2-VL's processing up to the point where numbers become floats; normalising and patches are the engine's.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
from PIL.Image import Resampling

from media.decode import load_pixels
from media.errors import MediaError, MediaErrorCode
from media.geometry import smart_resize
from media.rgb import Colour, upright_rgb

DEFAULT_MIN_PIXELS = 4 * 28 * 28
DEFAULT_MAX_PIXELS = 1280 * 28 * 28
LARGEST_MAX_PIXELS = 16384 * 28 * 28
"""The most that a request may ask for: as many tokens as Qwen2-VL was made for in one picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageProcessing:
    """How a checkpoint wants its pictures."""

    patch_size: int
    """Pixels of a patch's side."""
    merge_size: int
    """Patches of a side that become one token."""
    temporal_patch_size: int
    """Frames of a patch; a picture is repeated to fill it."""
    min_pixels: int
    """Smaller pictures are enlarged to this area."""
    max_pixels: int
    """Larger pictures are reduced to this area."""
    background: Colour = (255, 255, 255)
    """What shows through where a picture is transparent."""

    def bounded(self, *, min_pixels: int | None, max_pixels: int | None) -> "ImageProcessing":
        """The same with a request's own bounds; a default gives way to a bound that was asked for.

        Raises:
            MediaError: INVALID_PARAMETER if they contradict each other or are out of range.
        """
        for name, pixels in (("min_pixels", min_pixels), ("max_pixels", max_pixels)):
            if pixels is not None and not 1 <= pixels <= LARGEST_MAX_PIXELS:
                raise _invalid_parameter(f"{name} ({pixels}) is not within 1 … {LARGEST_MAX_PIXELS}")
        lower = min(self.min_pixels, max_pixels or self.min_pixels) if min_pixels is None else min_pixels
        upper = max(self.max_pixels, min_pixels or self.max_pixels) if max_pixels is None else max_pixels
        if lower > upper:
            raise _invalid_parameter(f"min_pixels ({lower}) is more than max_pixels ({upper})")
        return replace(self, min_pixels=lower, max_pixels=upper)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Image:
    """A picture that is ready for the engine."""

    pixels: npt.NDArray[np.uint8]
    """[height, width, 3], RGB, resized; read-only."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging."""
    num_tokens: int
    """Tokens that it takes in a prompt."""
    key: bytes
    """SHA-256 of the pixels and of how they become patches: equal exactly for what the engine would compute alike."""


def image_processing(path: Path) -> ImageProcessing:
    """Reads a checkpoint's `preprocessor_config.json`, of the published checkpoints' form or transformers 5's.

    Raises:
        ValueError: it is not there, is not JSON, or asks for what is not done here.
    """
    config = _read_json(path / "preprocessor_config.json")
    if config.get("resample", Resampling.BICUBIC) != Resampling.BICUBIC:
        raise ValueError("preprocessor_config.json asks for a resampling other than bicubic (3)")
    size: Mapping[str, Any] = config.get("size") or {}
    own_min = config.get("min_pixels") or size.get("min_pixels") or size.get("shortest_edge")
    own_max = config.get("max_pixels") or size.get("max_pixels") or size.get("longest_edge")
    max_pixels = min(_positive("max_pixels", own_max or DEFAULT_MAX_PIXELS), DEFAULT_MAX_PIXELS)
    return ImageProcessing(
        patch_size=_positive("patch_size", config.get("patch_size", 14)),
        merge_size=_positive("merge_size", config.get("merge_size", 2)),
        temporal_patch_size=_positive("temporal_patch_size", config.get("temporal_patch_size", 2)),
        min_pixels=min(_positive("min_pixels", own_min or DEFAULT_MIN_PIXELS), max_pixels),
        max_pixels=max_pixels,
    )


def prepare_image(
    image: PIL.Image.Image,
    processing: ImageProcessing,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> Image:
    """Makes a picture of any mode, size and orientation ready for the engine.

    Raises:
        MediaError: the picture is damaged, too long for its width, of unknown colours; or the bounds are wrong.
    """
    bounds = processing.bounded(min_pixels=min_pixels, max_pixels=max_pixels)
    load_pixels(image)
    rgb = upright_rgb(image, processing.background)
    height, width = smart_resize(
        rgb.height,
        rgb.width,
        factor=processing.patch_size * processing.merge_size,
        min_pixels=bounds.min_pixels,
        max_pixels=bounds.max_pixels,
    )
    pixels = np.asarray(rgb.resize((width, height), Resampling.BICUBIC))  # [height, width, 3]
    grid_thw = (1, height // processing.patch_size, width // processing.patch_size)
    return Image(
        pixels=pixels,
        grid_thw=grid_thw,
        num_tokens=grid_thw[1] * grid_thw[2] // processing.merge_size**2,
        key=_content_key(pixels, processing),
    )


def _content_key(pixels: npt.NDArray[np.uint8], processing: ImageProcessing) -> bytes:
    """Each field is preceded by its length, so that no two lists of fields are the same bytes."""
    numbers = (*pixels.shape, processing.patch_size, processing.merge_size, processing.temporal_patch_size)
    fields = (b"glimpse.media.v1", b"image", *(str(number).encode() for number in numbers), pixels.data)
    digest = hashlib.sha256()
    for field in fields:
        digest.update(memoryview(field).nbytes.to_bytes(8, "little"))
        digest.update(field)
    return digest.digest()


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"the checkpoint has no {path.name}") from error
    except ValueError as error:
        raise ValueError(f"the checkpoint's {path.name} is not JSON: {error}") from error


def _positive(name: str, value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"preprocessor_config.json: {name} is not a positive whole number")
    return value


def _invalid_parameter(message: str) -> MediaError:
    return MediaError(MediaErrorCode.INVALID_PARAMETER, message)
