"""Several questions about one image, where a later one may lean on an earlier one."""

from dataclasses import replace

from models.training.drawing.draw import draw_image
from models.training.drawing.scene import Scene, draw_look, draw_scene
from models.training.rng import SampleRng
from models.training.sample import Sample
from models.training.tasks import templates
from models.training.tasks.questions import ASKS, ask_about_it
from models.training.tasks.talk import Exchange, conversation


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
