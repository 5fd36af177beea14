"""Scenes to pixels. Knows how things look on a screen and in a photo's file; decides nothing about what is shown."""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from models.training.drawing.palette import Rgb
from models.training.drawing.scene import Background, Scene, Thing
from models.training.drawing.shapes import ROUND, Point
from models.training.rng import SampleRng
from models.training.sample import SampleImage, Seen

Pixels = npt.NDArray[np.uint8]


def draw_image(rng: SampleRng, scene: Scene) -> SampleImage:
    """The image of a scene."""
    canvas = draw_ground(rng, scene.background, scene.width, scene.height)
    objects = tuple(stamp(rng, canvas, thing) for thing in scene.things)
    return SampleImage(pixels=finish(rng, canvas), objects=objects)


def draw_ground(rng: SampleRng, background: Background, width: int, height: int) -> Pixels:
    """The background alone."""
    canvas = np.empty((height, width, 3), np.uint8)
    if background.top == background.bottom:
        canvas[:] = background.top
    else:
        part = np.linspace(0, 1, height)[:, None]
        canvas[:] = (np.array(background.top) * (1 - part) + np.array(background.bottom) * part)[:, None]
    if background.noise:
        noise = np.random.default_rng(rng.source.getrandbits(32)).normal(0, background.noise, canvas.shape)
        canvas[:] = np.clip(canvas + noise, 0, 255)
    return canvas


def stamp(rng: SampleRng, canvas: Pixels, thing: Thing) -> Seen:
    """Draws a thing onto a canvas."""
    fine = 1 if rng.chance(0.25) else 4 if thing.diameter < 40 else 2
    box = paste(canvas, _mask(thing, fine), thing.rgb, thing.cx, thing.cy)
    if thing.border is not None:
        paste(canvas, _mask(thing, fine, border=True), thing.border, thing.cx, thing.cy)
    return Seen(kind="shape", name=thing.shape, colour=thing.colour, size=thing.size, cx=thing.cx, cy=thing.cy, box=box)


def paste(canvas: Pixels, mask: Image.Image, rgb: Rgb, cx: float, cy: float) -> tuple[float, float, float, float]:
    """Lays colour onto a canvas where a mask is, its middle at (cx, cy) to the next pixel; gives the ink's box."""
    left, top = round(cx - mask.width / 2), round(cy - mask.height / 2)
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + mask.width, canvas.shape[1]), min(top + mask.height, canvas.shape[0])
    part = np.asarray(mask)[y0 - top : y1 - top, x0 - left : x1 - left, None].astype(np.float32) / 255
    ground = canvas[y0:y1, x0:x1]
    ground[:] = np.rint(ground * (1 - part) + np.array(rgb, np.float32) * part)
    ink = mask.getbbox() or (0, 0, mask.width, mask.height)
    return left + ink[0], top + ink[1], left + ink[2], top + ink[3]


def finish(rng: SampleRng, canvas: Pixels) -> Pixels:
    """What happens to an image on its way: sometimes it was a JPEG file, sometimes it was scaled."""
    if rng.chance(0.15):
        canvas = _resized(canvas, rng.between(0.6, 1.6))
    return _through_jpeg(canvas, rng.source.randint(40, 95)) if rng.chance(0.2) else canvas


def _mask(thing: Thing, fine: int, *, border: bool = False) -> Image.Image:
    """A thing's form, or that of its border; `fine` steps for a pixel make its edges soft."""
    side = int(thing.diameter) + 2
    mask = Image.new("L", (side * fine, side * fine))
    pen = ImageDraw.Draw(mask)
    for line, fill in zip(thing.lines, (255, 0), strict=False):
        points = [_at(point, side, thing.diameter, fine) for point in line]
        style: dict[str, int] = {"outline": 255, "width": fine} if border else {"fill": fill}
        if thing.shape in ROUND:
            xs, ys = [x for x, _ in points], [y for _, y in points]
            pen.ellipse((min(xs), min(ys), max(xs), max(ys)), **style)
        else:
            pen.polygon(points, **style)
    return mask.reduce(fine) if fine > 1 else mask


def _at(point: Point, side: int, diameter: float, fine: int) -> Point:
    return (point[0] * diameter + side / 2) * fine - 0.5, (point[1] * diameter + side / 2) * fine - 0.5


def _resized(canvas: Pixels, scale: float) -> Pixels:
    """Returns what drawing at another scale would have made."""
    height, width = canvas.shape[:2]
    there = Image.fromarray(canvas).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    return np.asarray(there.resize((width, height), Image.Resampling.BICUBIC))


def _through_jpeg(canvas: Pixels, quality: int) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(canvas).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
