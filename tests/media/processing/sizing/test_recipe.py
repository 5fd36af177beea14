"""Recipes: bounds that they honor or refuse by name, and results of decoding workers that they accept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.errors import MediaOptionError
from glimpse.media.processing.sizing.recipe import ImageRecipe, VideoRecipe
from glimpse.media.processing.sizing.smart_frames import SmartFrames
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.sizing.views import ImagePlan, View


class Square(ImageRecipe, frozen=True, kw_only=True, tag="square"):
    side: int

    def plan(self, height: int, width: int) -> ImagePlan:
        return ImagePlan(views=(View(resized=(self.side, self.side)),), grid=(height, width))


class Squares(VideoRecipe, frozen=True, kw_only=True, tag="squares"):
    side: int

    def plan(self, num_frames: int, height: int, width: int) -> View:
        return View(resized=(self.side, self.side))

    def grid(self, num_frames: int, height: int, width: int) -> tuple[int, ...]:
        return (num_frames,)

    def fits(self, num_frames: int, height: int, width: int) -> bool:
        return height == width == self.side


@pytest.mark.parametrize("name", ["min_pixels", "max_pixels"])
def test_recipe_of_one_size_refuses_bounds_by_name(name: str) -> None:
    bounds = {"min_pixels": None, "max_pixels": None}
    assert Square(side=4).with_bounds(**bounds) == Square(side=4)
    with pytest.raises(
        MediaOptionError, match=f"'{name}': expected none, since the model decides the size in pixels, got 100"
    ):
        Square(side=4).with_bounds(**bounds | {name: 100})


@pytest.mark.parametrize("name", ["min_pixels", "max_pixels", "total_pixels"])
def test_recipe_of_frames_of_one_size_refuses_bounds_by_name(name: str) -> None:
    bounds = {"min_pixels": None, "max_pixels": None, "total_pixels": None}
    assert Squares(side=4).with_bounds(**bounds) == Squares(side=4)
    with pytest.raises(
        MediaOptionError, match=f"'{name}': expected none, since the model decides the size in pixels, got 100"
    ):
        Squares(side=4).with_bounds(**bounds | {name: 100})


def test_key_covers_the_grid_unless_it_follows_from_the_pixels() -> None:
    assert Square(side=4).key_parameters((5, 6)) == (5, 6)
    assert SmartResize().key_parameters((1, 4, 4)) == (14, 2, 2)


@given(num_frames=st.integers(1, 50), height=st.integers(30, 500), width=st.integers(30, 500))
def test_planned_frames_fit(num_frames: int, height: int, width: int) -> None:
    view = SmartFrames().plan(num_frames, height, width)
    assert SmartFrames().fits(num_frames, *view.whole)
    height, width = view.whole
    assert SmartFrames().grid(num_frames, height, width) == (-(-num_frames // 2), height // 14, width // 14)
    assert not SmartFrames().fits(num_frames, height, width + 1)
    assert not SmartFrames().fits(100_000, height, width)
