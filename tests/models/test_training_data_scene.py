"""Scenes are unambiguous, and rendered images match their scenes."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.training.drawing.draw import draw_image
from models.training.drawing.letters import draw_ink
from models.training.drawing.palette import COLOURS, distance, draw_rgb
from models.training.drawing.scene import LARGE, SMALL, SMALLEST_PIXELS, Background, Look, Scene, draw_look, draw_scene
from models.training.drawing.shapes import SHAPES, outline
from models.training.drawing.videos import DIRECTIONS, draw_video, draw_video_scene, move
from models.training.rng import SampleRng, Templates
from models.training.tasks.reading import draw_sign, draw_sign_image

SEEDS = st.integers(0, 2**32)
PLAIN = Background(colour="white", top=(255, 255, 255), bottom=(255, 255, 255), noise=0.0)


class Steady(random.Random):
    """A random source that skips unlikely branches: no JPEG artefacts, no scaling, soft edges."""

    def random(self) -> float:
        return 0.99


def sample_rng(seed: int) -> SampleRng:
    return SampleRng(source=random.Random(seed), largest_side=224)


def scene_of(seed: int, number: int) -> Scene:
    rng = sample_rng(seed)
    return draw_scene(rng, [draw_look(rng, sized=True) for _ in range(number)], own_cells=True)


@settings(max_examples=60)
@given(seed=SEEDS, number=st.integers(1, 4))
def test_things_do_not_overlap_and_lie_inside(seed: int, number: int) -> None:
    scene = scene_of(seed, number)
    for index, thing in enumerate(scene.things):
        assert thing.diameter / 2 <= thing.cx <= scene.width - thing.diameter / 2
        assert thing.diameter / 2 <= thing.cy <= scene.height - thing.diameter / 2
        assert all(thing.apart(other) for other in scene.things[:index])
    assert len({thing.cell for thing in scene.things}) == number


@settings(max_examples=60)
@given(seed=SEEDS, number=st.integers(1, 4))
def test_centres_are_away_from_grid_lines(seed: int, number: int) -> None:
    scene = scene_of(seed, number)
    for thing in scene.things:
        column, row = 3 * thing.cx / scene.width, 3 * thing.cy / scene.height
        assert (int(column), int(row)) == (thing.cell % 3, thing.cell // 3)
        assert all(abs(column - line) > 0.15 and abs(row - line) > 0.15 for line in (1, 2))


@settings(max_examples=60)
@given(seed=SEEDS, number=st.integers(1, 4))
def test_small_and_large_are_clearly_different(seed: int, number: int) -> None:
    scene = scene_of(seed, number)
    side = min(scene.width, scene.height)
    for thing in scene.things:
        assert thing.diameter >= SMALLEST_PIXELS
        match thing.size:
            case "small":
                assert thing.diameter <= SMALL[1] * side + 1e-9
            case _:
                assert thing.size == "large"
                assert thing.diameter >= LARGE[0] * side


@settings(max_examples=60)
@given(seed=SEEDS)
def test_things_contrast_with_their_background(seed: int) -> None:
    scene = scene_of(seed, 3)
    assert all(scene.background.shows(thing.rgb) for thing in scene.things)


@settings(max_examples=60)
@given(seed=SEEDS, colour=st.sampled_from(COLOURS), other=st.sampled_from(COLOURS))
def test_different_colours_are_distinguishable(seed: int, colour: str, other: str) -> None:
    rng = sample_rng(seed)
    assert colour == other or distance(draw_rgb(rng, colour), draw_rgb(rng, other)) > 25


@pytest.mark.parametrize("shape", SHAPES)
def test_outline_fills_its_box(shape: str) -> None:
    for seed in range(20):
        points = outline(sample_rng(seed), shape)[0]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        assert max(max(xs) - min(xs), max(ys) - min(ys)) == pytest.approx(1)
        assert max(xs) == pytest.approx(-min(xs))
        assert max(ys) == pytest.approx(-min(ys))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "ring"])
def test_labelled_box_matches_the_pixels(shape: str) -> None:
    rng = SampleRng(source=Steady(1))
    look = Look(shape=shape, colour="red", size="large", cell=2)
    scene = draw_scene(sample_rng(0), [look], sides=(112, 84))
    scene = replace(scene, background=PLAIN, things=(replace(scene.things[0], rgb=(255, 0, 0), border=None),))
    image = draw_image(rng, scene)
    (seen,) = image.objects
    assert tuple(image.pixels[round(seen.cy), round(seen.cx)]) == (255, 0, 0)
    rows, columns = np.nonzero(np.any(image.pixels != 255, axis=2))
    x0, y0, x1, y1 = seen.box
    assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (x0, y0, x1, y1)
    assert (x0 + x1) / 2 == pytest.approx(seen.cx, abs=1.5)
    assert (y0 + y1) / 2 == pytest.approx(seen.cy, abs=1.5)


def test_ring_has_a_hole() -> None:
    scene = draw_scene(sample_rng(0), [Look(shape="ring", colour="red", size="large")], sides=(112, 112))
    scene = replace(scene, background=PLAIN, things=(replace(scene.things[0], border=None),))
    image = draw_image(SampleRng(source=Steady(1)), scene)
    (seen,) = image.objects
    assert tuple(image.pixels[round(seen.cy), round(seen.cx)]) == (255, 255, 255)


@settings(max_examples=60)
@given(seed=SEEDS, text=st.sampled_from(["7", "42", "CAT", "K9", "hello", "orange", "DRAGON12"]))
def test_each_character_of_a_text_has_a_box(seed: int, text: str) -> None:
    ink = draw_ink(sample_rng(seed), text, 24)
    assert len(ink.boxes) == len(text)
    middles = [(x0 + x1) / 2 for x0, _, x1, _ in ink.boxes]
    assert middles == sorted(middles)
    assert all(-3 <= x0 < x1 <= ink.mask.width + 3 for x0, _, x1, _ in ink.boxes)


@settings(max_examples=40)
@given(seed=SEEDS)
def test_text_lies_inside_its_image(seed: int) -> None:
    rng = sample_rng(seed)
    sign = draw_sign(rng, "CAT")
    image = draw_sign_image(rng, sign)
    assert [seen.name for seen in image.objects] == ["C", "A", "T"]
    assert all(0 <= seen.cx < sign.width and 0 <= seen.cy < sign.height for seen in image.objects)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_thing_moves_in_the_labelled_direction(direction: str) -> None:
    x, y = DIRECTIONS[direction]
    for seed in range(10):
        rng = sample_rng(seed)
        scene = draw_video_scene(rng, 1)
        moments = move(rng, scene, direction, 4)
        if moments is None:
            continue
        video = draw_video(rng, scene, moments)
        centres = [(seen.cx, seen.cy) for (seen,) in video.objects]
        steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(centres)]
        assert all(step[0] * x + step[1] * y > 0 for step in steps)
        assert all(abs(step[0] * y) + abs(step[1] * x) < 1e-9 for step in steps)
        assert not np.array_equal(video.frames[0], video.frames[-1])


def test_template_expands_to_all_variants() -> None:
    forms = Templates(learnt=("(What|Which) colour is the {the}( here|)?",), held_out=("Tell me the {the}'s colour.",))
    rng = sample_rng(0)
    said = {rng.say(forms, the="star") for _ in range(60)}
    assert said == {
        "What colour is the star?",
        "Which colour is the star?",
        "What colour is the star here?",
        "Which colour is the star here?",
    }
    assert replace(rng, held_out=True).say(forms, the="star") == "Tell me the star's colour."
    typed = {rng.ask(forms, the="star") for _ in range(300)}
    assert {"what color is the star", "What color is the star?", "which colour is the star?"} & typed
    assert len(typed) > 12
