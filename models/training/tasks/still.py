"""Tasks about one image of things: which scenes suit which question, and which question may follow another."""

from dataclasses import replace

from models.training.drawing.draw import draw_image
from models.training.drawing.palette import COLOURS
from models.training.drawing.scene import Look, Scene, draw_look, draw_scene
from models.training.drawing.shapes import SHAPES
from models.training.rng import SampleRng
from models.training.sample import Sample
from models.training.tasks import templates
from models.training.tasks.questions import ASKS, ask_about_it
from models.training.tasks.talk import Exchange, conversation

_MOST = 6
"""Things that are to be counted."""
_PRACTISED = {1: 0.07, 2: 0.1, 3: 0.17, 4: 0.24, 5: 0.21, 6: 0.21}
"""How often training counts among so many: one and two are soon known."""


def still_sample(task: str, rng: SampleRng) -> Sample:
    """A question about one image, and perhaps more that do not follow from its answer."""

    def draw() -> tuple[Scene, Exchange] | None:
        scene = _draw_scene(task, rng)
        exchange = ASKS[task](rng, scene)
        return (scene, exchange) if exchange else None

    scene, exchange = rng.until(draw)
    exchanges = [exchange]
    # Whoever has read a whole description need not look for what is asked next.
    if task != "describe":
        for _ in range(rng.source.randrange(rng.most_questions)):
            exchanges.append(ask_next(rng, scene, exchanges, favoured=task))
    return conversation(rng, task, [draw_image(rng, scene)], exchanges)


def _draw_scene(task: str, rng: SampleRng) -> Scene:
    match task:
        case "count":
            return draw_scene(rng, crowd(rng))
        case "describe" | "size":
            number = rng.weighted({0: 0.02, 1: 0.38, 2: 0.34, 3: 0.22, 4: 0.04})
            return draw_scene(rng, [draw_look(rng, sized=True) for _ in range(number)], own_cells=True)
        case _:
            number = rng.weighted({1: 0.4, 2: 0.3, 3: 0.2, 4: 0.1})
            return draw_scene(rng, [draw_look(rng, sized=rng.chance(0.4)) for _ in range(number)])


def crowd(rng: SampleRng) -> list[Look]:
    """Things to be counted: one to six, some of them alike in shape or colour."""
    number = rng.source.randint(1, _MOST) if rng.held_out else rng.weighted(_PRACTISED)
    shapes = rng.some(SHAPES, rng.source.randint(1, 3))
    colours = rng.some(COLOURS, rng.source.randint(1, 4))
    return [
        Look(shape=rng.one(shapes), colour=rng.one(colours), size="small" if number > 4 else None)
        for _ in range(number)
    ]


def follow_up_sample(task: str, rng: SampleRng) -> Sample:
    """Two to four questions."""
    number = rng.weighted({1: 0.4, 2: 0.35, 3: 0.25})
    scene = draw_scene(rng, [draw_look(rng, sized=True) for _ in range(number)], own_cells=True)
    exchanges: list[Exchange] = []
    for _ in range(rng.weighted({2: 0.5, 3: 0.3, 4: 0.2})):
        exchanges.append(ask_next(rng, scene, exchanges))
    return conversation(rng, task, [draw_image(rng, scene)], exchanges)


def ask_next(rng: SampleRng, scene: Scene, earlier: list[Exchange], *, favoured: str | None = None) -> Exchange:
    """A question that was not asked before, about the thing that was last spoken of or about anything.

    Args:
        rng: What it is drawn with.
        scene: What is asked about.
        earlier: What was said before.
        favoured: The task that half of the questions about anything belong to.
    """
    answers = {exchange.answer for exchange in earlier}

    def draw() -> Exchange | None:
        about = earlier[-1].about if earlier else None
        if about is not None and rng.chance(0.5 if favoured is None else 0.2):
            exchange = ask_about_it(rng, about)
        elif favoured is not None and rng.chance(0.5):
            exchange = ASKS[favoured](rng, scene)
        else:
            exchange = rng.one(tuple(ASKS.values()))(rng, scene)
        return exchange if exchange and exchange.answer not in answers else None

    exchange = rng.until(draw)
    if not earlier or exchange.question.startswith("And"):
        return exchange
    opening = rng.say(templates.FOLLOWING)
    return replace(exchange, question=opening + exchange.question)
