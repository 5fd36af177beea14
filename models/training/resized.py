"""Resizes a sample's images as the server does.

Enlarging the smallest images improves reading: a letter of a dozen pixels then spans several patches.
"""

from dataclasses import replace

import PIL.Image

from glimpse.media.processing.image import ImageProcessing, image_pixels
from glimpse.media.processing.sizing.smart_resize import SmartResize
from models.training.sample import Sample, SampleImage, SampleVideo, Seen

SIZING = SmartResize(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=112 * 112, max_pixels=448 * 448)
PROCESSING = ImageProcessing(sizing=SIZING)
"""The embedded checkpoint's processing."""


def resized(sample: Sample, processing: ImageProcessing = PROCESSING) -> Sample:
    """Returns a sample with images within the bounds, and objects moved accordingly."""

    def content(part: str | SampleImage | SampleVideo) -> str | SampleImage | SampleVideo:
        return resize(part, processing) if isinstance(part, SampleImage) else part

    turns = (replace(turn, content=tuple(map(content, turn.content))) for turn in sample.turns)
    return replace(sample, turns=tuple(turns))


def resize(sample_image: SampleImage, processing: ImageProcessing) -> SampleImage:
    """Returns the image within the bounds, unchanged if it already is."""
    height, width, _ = sample_image.pixels.shape
    sizing = processing.sizing
    if isinstance(sizing, SmartResize) and sizing.min_pixels <= height * width <= sizing.max_pixels:
        return sample_image
    pixels, _ = image_pixels(PIL.Image.fromarray(sample_image.pixels), processing)
    down, right = pixels.shape[0] / height, pixels.shape[1] / width
    return SampleImage(pixels=pixels, objects=tuple(_moved(seen, down, right) for seen in sample_image.objects))


def _moved(seen: Seen, down: float, right: float) -> Seen:
    x0, y0, x1, y1 = seen.box
    box = x0 * right, y0 * down, x1 * right, y1 * down
    return replace(seen, cx=seen.cx * right, cy=seen.cy * down, box=box)
