"""The outlines of shapes in a unit box, with the small freedoms that each has. Knows no pixels and no colours."""

import math

from models.training.rng import SampleRng

Point = tuple[float, float]
Line = tuple[Point, ...]

SHAPES = ("circle", "square", "triangle", "star", "rectangle", "diamond", "cross", "ring")
"""Shapes that can be told apart in a dozen pixels."""

ROUND = ("circle", "ring")
"""Shapes whose outlines are points of an ellipse."""


def outline(rng: SampleRng, shape: str) -> tuple[Line, ...]:
    """A shape's outlines, the second one a hole, in a box from -½ to ½ that it fills on its longer side."""
    degrees = _draw_turn(rng, shape)
    return _fitted([_turned(points, degrees) for points in _outline(rng, shape)])


def _outline(rng: SampleRng, shape: str) -> list[list[Point]]:
    match shape:
        case "circle":
            return [_round(1.0)]
        case "ring":
            return [_round(1.0), _round(rng.between(0.48, 0.66))]
        case "square":
            return [_box(1.0, rng.between(0.95, 1.0))]
        case "rectangle":
            return [_box(1.0, rng.between(0.38, 0.58)) if rng.chance(0.6) else _box(rng.between(0.38, 0.58), 1.0)]
        case "triangle":
            return [[(rng.between(-0.25, 0.25) if rng.chance(0.3) else 0.0, -0.87), (-1.0, 0.87), (1.0, 0.87)]]
        case "diamond":
            width = rng.between(0.6, 1.0)
            return [[(0.0, -1.0), (width, 0.0), (0.0, 1.0), (-width, 0.0)]]
        case "star":
            return [_star(rng.between(0.36, 0.46))]
        case "cross":
            return [_cross(rng.between(0.26, 0.38))]
        case _:
            raise ValueError(f"no shape is called {shape!r}")


def _draw_turn(rng: SampleRng, shape: str) -> float:
    """Degrees."""
    match shape:
        case "triangle":
            return rng.weighted({0: 6, 180: 2, 90: 1, 270: 1}) + rng.between(-8, 8)
        case "star":
            return rng.between(-36, 36) if rng.chance(0.3) else rng.between(-6, 6)
        case "cross":
            return (45 if rng.chance(0.2) else 0) + rng.between(-6, 6)
        case "diamond":
            return rng.between(-5, 5)
        case "square" | "rectangle":
            return rng.between(-9, 9) if rng.chance(0.4) else 0.0
        case _:
            return 0.0


def _round(radius: float) -> list[Point]:
    angles = [math.pi * step / 2 for step in range(4)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle in angles]


def _box(width: float, height: float) -> list[Point]:
    return [(-width, -height), (width, -height), (width, height), (-width, height)]


def _star(inner: float) -> list[Point]:
    spokes = [(inner if step % 2 else 1.0, math.pi * (step / 5 - 0.5)) for step in range(10)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in spokes]


def _cross(arm: float) -> list[Point]:
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    points: list[Point] = []
    for _ in range(4):
        points.extend(quarter)
        quarter = [(-y, x) for x, y in quarter]
    return points


def _turned(points: list[Point], degrees: float) -> list[Point]:
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(x * cosine - y * sine, x * sine + y * cosine) for x, y in points]


def _fitted(lines: list[list[Point]]) -> tuple[Line, ...]:
    """Moved and scaled so that the first outline's longer side is 1, around the middle."""
    xs, ys = [x for x, _ in lines[0]], [y for _, y in lines[0]]
    middle_x, middle_y = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    side = max(max(xs) - min(xs), max(ys) - min(ys))
    return tuple(tuple(((x - middle_x) / side, (y - middle_y) / side) for x, y in line) for line in lines)
