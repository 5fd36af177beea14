"""Videos of things that move, change or come and go, as frames. Knows no questions."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace

import av
import numpy as np
import numpy.typing as npt

from models.training.drawing.draw import draw_ground, finish, stamp
from models.training.drawing.palette import COLOURS, draw_rgb
from models.training.drawing.scene import Background, Scene, Thing, draw_look, draw_scene
from models.training.rng import SampleRng
from models.training.sample import SampleVideo

Frames = npt.NDArray[np.uint8]

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Direction → (x, y), as seen on a screen."""

LARGEST_SIDE = 140
"""Pixels; a video of eight frames has as many tokens as four images."""

_TRAVEL = 0.3
"""How far a thing moves at least, as a part of the side."""


def draw_video(rng: SampleRng, scene: Scene, moments: Sequence[Sequence[Thing]]) -> SampleVideo:
    """The video that shows these things on a scene's background, frame by frame."""
    ground = draw_ground(rng, scene.background, scene.width, scene.height)
    state, frames = rng.source.getstate(), []
    objects = []
    for things in moments:
        # Each frame with the same rng: the same softness of edges, the same quality of compression.
        rng.source.setstate(state)
        canvas = ground.copy()
        objects.append(tuple(stamp(rng, canvas, thing) for thing in things))
        frames.append(canvas)
    state = rng.source.getstate()
    for index, canvas in enumerate(frames):
        rng.source.setstate(state)
        frames[index] = finish(rng, canvas)
    stacked = np.stack(frames)
    return SampleVideo(frames=_through_codec(rng, stacked) if rng.chance(0.1) else stacked, objects=tuple(objects))


def _through_codec(rng: SampleRng, frames: Frames) -> Frames:
    """Encodes and decodes a video: colours have half the resolution, and details are what compression leaves."""
    file = io.BytesIO()
    options = {"crf": str(rng.source.randint(16, 32)), "preset": "ultrafast", "threads": "1"}
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=2, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    file.seek(0)
    with av.open(file, "r") as source:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in source.decode(video=0)]).astype(np.uint8)


def draw_num_frames(rng: SampleRng) -> int:
    """2, 4, 6 or 8."""
    return rng.weighted({2: 0.15, 4: 0.45, 6: 0.2, 8: 0.2})


def draw_video_scene(rng: SampleRng, number: int) -> Scene:
    """A scene of a few things, small enough for a video."""
    bounded = replace(rng, largest_side=min(rng.largest_side, LARGEST_SIDE))
    return draw_scene(bounded, [draw_look(bounded) for _ in range(number)])


def move(rng: SampleRng, scene: Scene, direction: str, num_frames: int) -> list[list[Thing]] | None:
    """The scene's first thing on its way, the others where they are; None where there is no room."""
    thing, *others = scene.things
    x, y = DIRECTIONS[direction]
    side = scene.width if x else scene.height
    room = side - thing.diameter - 2
    if room < _TRAVEL * side:
        return None
    travel = rng.between(_TRAVEL * side, room)
    start = rng.between(thing.diameter / 2 + 1, thing.diameter / 2 + 1 + room - travel)
    moments: list[list[Thing]] = []
    for index in range(num_frames):
        along = start + travel * index / (num_frames - 1)
        if x + y < 0:
            along = side - along
        moved = replace(thing, cx=along) if x else replace(thing, cy=along)
        if not all(moved.apart(other) for other in others):
            return None
        moments.append([moved, *others])
    return moments


def recolour(rng: SampleRng, thing: Thing, background: Background) -> Thing:
    """Returns the thing in another colour that is clear on this background."""

    def draw() -> Thing | None:
        colour = rng.one([colour for colour in COLOURS if colour != thing.colour])
        rgb = draw_rgb(rng, colour)
        return replace(thing, colour=colour, rgb=rgb) if background.shows(rgb) else None

    return rng.until(draw)


def switch(rng: SampleRng, num_frames: int) -> int:
    """The first frame after a change in the middle of a video."""
    return rng.source.randint(math.ceil(num_frames / 3), num_frames - math.ceil(num_frames / 3))
