"""Images in any aspect ratio that fill a budget of tokens, as Gemma 4 reads them. Pure arithmetic.

As in transformers (models/gemma4/image_processing_gemma4.py).
"""

import math

import msgspec

from glimpse.media.errors import MediaOptionError
from glimpse.media.processing.sizing.recipe import LOW_DETAIL_MAX_PIXELS, ImageRecipe, check_aspect_ratio
from glimpse.media.processing.sizing.views import ImagePlan, Size, View

BUDGETS = (70, 140, 280, 560, 1120)
"""Tokens of an image with which the models were trained."""


class PatchBudget(ImageRecipe, frozen=True, kw_only=True, tag="patch_budget"):
    """Images that are enlarged or reduced to nearly the area of a number of tokens."""

    patch_size: int = 16
    """Side of a patch in pixels."""
    pool_size: int = 3
    """Side of a token in patches."""
    max_tokens: int = 280
    """Most tokens of an image: one of `BUDGETS`."""
    largest: int = BUDGETS[-1]
    """Most tokens that a request may choose."""

    def plan(self, height: int, width: int) -> ImagePlan:
        """Returns an image resized to the budget; its grid is (1, rows, columns) of patches."""
        size = budget_size(height, width, factor=self.factor, max_tokens=self.max_tokens)
        return ImagePlan(views=(View(resized=size),), grid=(1, size[0] // self.patch_size, size[1] // self.patch_size))

    def key_parameters(self, grid: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002 - it follows from the shape
        return (self.patch_size, self.pool_size)

    def with_bounds(self, *, min_pixels: int | None, max_pixels: int | None) -> "PatchBudget":
        """Returns a copy with the largest budget whose area is at most `max_pixels`.

        Raises:
            MediaOptionError: `min_pixels` is given, or `max_pixels` is less than the area of the smallest budget.
        """
        if min_pixels is not None:
            raise MediaOptionError("min_pixels", f"expected none, since images fill a budget, got {min_pixels}")
        if max_pixels is None:
            return self
        if max_pixels < self.area(BUDGETS[0]):
            raise MediaOptionError(
                "max_pixels",
                f"expected at least {self.area(BUDGETS[0])}, the model's smallest images, got {max_pixels}",
            )
        most = max(each for each in BUDGETS if self.area(each) <= max_pixels)
        return msgspec.structs.replace(self, max_tokens=min(most, self.largest))

    def low_detail(self) -> "PatchBudget":
        most = max(each for each in BUDGETS if self.area(each) <= LOW_DETAIL_MAX_PIXELS)
        return msgspec.structs.replace(self, max_tokens=min(self.max_tokens, most))

    @property
    def factor(self) -> int:
        """Side of a token in pixels."""
        return self.patch_size * self.pool_size

    def area(self, num_tokens: int) -> int:
        """Returns the pixels of so many tokens."""
        return num_tokens * self.factor**2


def budget_size(height: int, width: int, *, factor: int, max_tokens: int) -> Size:
    """Returns the largest size of nearly an image's aspect ratio in whole tokens, of which there are `max_tokens` at
    most.

    Args:
        height: In pixels.
        width: In pixels.
        factor: Side of a token in pixels.
        max_tokens: At least 1.

    Returns:
        (height, width), in pixels.

    Raises:
        MediaError: INVALID_MEDIA if a side is 0 or more than 200 times the other.
    """
    check_aspect_ratio(height, width)
    scale = math.sqrt(max_tokens * factor**2 / (height * width))
    rows, columns = math.floor(scale * height / factor), math.floor(scale * width / factor)
    if rows == 0:
        rows, columns = 1, min(width // height, max_tokens)
    elif columns == 0:
        rows, columns = min(height // width, max_tokens), 1
    return rows * factor, columns * factor
