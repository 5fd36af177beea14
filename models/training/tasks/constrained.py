"""The tasks of answering under a constraint that the question does not mention: JSON, or one of several words.

A server enforces the form of such answers and shows the model nothing of it, so the values alone are to be learnt: an
answer that begins with `{"colour": "` goes on with the truth.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from models.training.drawing.draw import draw_image
from models.training.drawing.palette import COLOURS
from models.training.drawing.scene import PLACES, Look, Scene, Thing, draw_look, draw_scene
from models.training.drawing.shapes import SHAPES
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample
from models.training.tasks import templates
from models.training.tasks.as_json import attribute
from models.training.tasks.check import SIZES, IsJson, Says
from models.training.tasks.phrases import named
from models.training.tasks.talk import Exchange, conversation

TELL = Templates(
    learnt=(
        "(Describe|Please describe|Look at|Identify|Analyse) {the}.",
        "What is {the}?",
        "(Tell me|Say something) about {the}.",
        "(What can you say|What do you know|What do you see) about {the}?",
        "(Extract|Return|Give me|Report|Fill in) the (attributes|properties|details|data) of {the}.",
        "(Shape and colour|Colour and shape) of {the}?",
        "(What shape and colour|What colour and shape) (is|has|does it have,) {the}?",
        "(Name|Classify|Recognise|Detect) {the}.",
        "(Which|What) (object|thing|shape) is {the}?",
    ),
    held_out=("How would you describe {the}?", "Give the properties of {the}.", "What are shape and colour of {the}?"),
)
"""What asks for all about a thing."""

AS_JSON = Templates(
    learnt=("(Answer|Reply|Respond) (as|in) JSON.", "JSON( only| please|).", "(Use|Give me|Return) JSON."),
    held_out=("Output JSON.",),
)
"""What may follow a question."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "shape": (
        *("shape", "shape", "shape", "object", "name", "form", "kind", "type", "figure", "thing", "Shape", "label"),
        *("shape_name", "object_shape", "objectShape", "object_name", "item"),
    ),
    "colour": (
        *("colour", "colour", "color", "color", "color", "Color", "Colour", "colour_name", "object_color"),
        *("shapeColor", "color_name", "main_colour", "mainColor", "paint"),
    ),
    "size": ("size", "size", "object_size", "Size", "how_big"),
    "place": ("place", "position", "location", "where", "object_position"),
}
"""Attribute → what schemas may call it."""
_HELD_OUT_KEYS: Mapping[str, tuple[str, ...]] = {
    "shape": ("shape", "object", "name"),
    "colour": ("colour", "color"),
    "size": ("size",),
    "place": ("place", "position"),
}
"""The usual ones, for evaluation."""

_WORDS: Mapping[str, tuple[str, ...]] = {
    "shape": SHAPES,
    "colour": COLOURS,
    "size": SIZES,
    "place": tuple(place.split(" the ")[1] for place in PLACES),
}
"""Attribute → its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A constraint, and the answer that keeps it."""

    answer: str
    learnt: tuple[tuple[int, int], ...]
    """See `Turn.learnt`."""
    choices: tuple[str, ...] = ()
    """See `Turn.choices`."""
    grammar: Grammar
    """What enforces it."""


def constrained_sample(task: str, rng: SampleRng) -> Sample:
    """Questions whose answers are JSON of a schema (the task "schema"), or a word of a list ("choice")."""

    scene = draw_constrained_scene(rng)
    asked: list[tuple[str, Form]] = []
    told: set[tuple[Thing, str]] = set()
    # In training, as many questions as have news in their answers: each costs little beside the image.
    for _ in range(1 if rng.held_out else 2 * len(scene.things)):
        thing = rng.one(scene.things)
        names = _attributes(task, rng)
        if not told.issuperset((thing, name) for name in names):
            told.update((thing, name) for name in names)
            asked.append(rng.until(lambda thing=thing, names=names: _ask(task, rng, scene, thing, names)))
    return _talk(task, rng, scene, asked)


def draw_constrained_scene(rng: SampleRng) -> Scene:
    """One to three different things, each of a clear size and in a cell of its own."""
    number = rng.weighted({1: 0.4, 2: 0.45, 3: 0.15} if rng.held_out else {1: 0.3, 2: 0.45, 3: 0.25})

    def draw() -> list[Look] | None:
        looks = [draw_look(rng, sized=True) for _ in range(number)]
        return looks if len({(look.shape, look.colour) for look in looks}) == number else None

    return draw_scene(rng, rng.until(draw), own_cells=True)


def _talk(task: str, rng: SampleRng, scene: Scene, asked: Sequence[tuple[str, Form]]) -> Sample:
    exchanges = [
        Exchange(question=question, answer=form.answer, check=_check(task, form.answer)) for question, form in asked
    ]
    sample = conversation(rng, task, [draw_image(rng, scene)], exchanges)
    forms = iter([form for _, form in asked])
    turns = tuple(
        replace(turn, learnt=form.learnt, choices=form.choices)
        if turn.role == "assistant" and (form := next(forms))
        else turn
        for turn in sample.turns
    )
    return replace(sample, turns=turns, grammar=asked[-1][1].grammar)


def _check(task: str, answer: str) -> IsJson | Says:
    return IsJson(answer) if task == "schema" else Says(answer)


def _ask(task: str, rng: SampleRng, scene: Scene, thing: Thing, names: Sequence[str]) -> tuple[str, Form] | None:
    """A question about a thing, and the form of its answer; None if this draw gives no unambiguous one."""
    if task == "choice":
        return _ask_choice(rng, scene, thing, names[0])
    question = _question(rng, scene, thing, names if len(names) == 1 else ())
    if question is None:
        return None
    if rng.chance(0.15):
        question = f"{question} {rng.say(AS_JSON)}"
    return question, _document(rng, thing, names)


def _attributes(task: str, rng: SampleRng) -> list[str]:
    """What an answer tells: for a choice one, else often both shape and colour."""
    if task == "choice":
        return [rng.weighted({"shape": 3, "colour": 4, **({} if rng.held_out else {"size": 1, "place": 1})})]
    if rng.held_out or rng.chance(0.5):
        return rng.some(("shape", "colour"), 2)
    weights = {"shape": 3.0, "colour": 3.0, "size": 1.5, "place": 1.0}
    return list(dict.fromkeys(rng.weighted(weights) for _ in range(rng.source.randint(1, 5))))


def _question(rng: SampleRng, scene: Scene, thing: Thing, asked: Sequence[str]) -> str | None:
    """A question about a thing: for one attribute, or for all."""
    if asked and rng.chance(0.6):
        return _ask_attribute(rng, scene, thing, asked[0])
    if len(scene.things) == 1 and rng.chance(0.6):
        return rng.ask(
            rng.weighted({templates.DESCRIBE: 3, templates.LIST: 1, templates.SHAPE_ALONE: 1.5, templates.COLOUR: 1}),
            the=rng.say(templates.ONE),
        )
    ways = [f"the {words}" for words in _references(rng, scene, thing)]
    places = _places(rng, scene, thing)
    if places and rng.chance(0.45):
        place = rng.one(places)
        if rng.chance(0.5):
            return rng.ask(templates.AT_PLACE, place=place)
        ways = [f"the {rng.say(templates.ONE)} {place}"]
    return rng.ask(TELL, the=rng.one(ways)) if ways else None


_ASKS = {
    "shape": templates.SHAPE,
    "colour": templates.COLOUR,
    "size": templates.SIZE,
    "place": templates.PLACE,
}


def _ask_attribute(rng: SampleRng, scene: Scene, thing: Thing, name: str) -> str | None:
    """A question for one attribute, by words that do not tell it where that is possible."""
    words = _references(rng, scene, thing, hidden=name)
    if name != "place":
        words += [f"{rng.say(templates.ONE)} {place}" for place in _places(rng, scene, thing)]
    return rng.ask(_ASKS[name], the=rng.one(words)) if words else None


def _references(rng: SampleRng, scene: Scene, thing: Thing, *, hidden: str | None = None) -> list[str]:
    """Words for a thing that fit no other, without one attribute."""
    others = [other for other in scene.things if other is not thing]
    one = rng.say(templates.ONE)
    words = [one] if not others else []
    for name, text in (
        ("shape", thing.shape),
        ("colour", f"{thing.colour} {one}"),
        ("size", f"{_sized(rng, thing.size)} {one}"),
    ):
        if name != hidden and all(getattr(other, name) != getattr(thing, name) for other in others):
            words.append(text)
    if hidden not in ("shape", "colour") and all(named(other) != named(thing) for other in others):
        words.append(named(thing))
    return words


def _sized(rng: SampleRng, size: str) -> str:
    return rng.one(("large", "large", "big", "larger", "largest") if size == "large" else ("small", "small", "smaller"))


def _places(rng: SampleRng, scene: Scene, thing: Thing) -> list[str]:
    """Where a thing is and no other, by its cell or by the side of the picture that it is alone on."""
    said = [rng.one(templates.PLACE_FORMS[thing.place])]
    others = [other.cell for other in scene.things if other is not thing]
    if not others:
        return said
    row, column = divmod(thing.cell, 3)
    sides = (
        ("on the left", column == 0 and all(cell % 3 > column for cell in others)),
        ("on the right", column == 2 and all(cell % 3 < column for cell in others)),
        ("at the top", row == 0 and all(cell // 3 > row for cell in others)),
        ("at the bottom", row == 2 and all(cell // 3 < row for cell in others)),
    )
    return said + [side for side, holds in sides if holds for _ in range(2)]


def _document(rng: SampleRng, thing: Thing, names: Sequence[str]) -> Form:
    """An object of some attributes, as a schema asks for it."""
    keys = {name: rng.one((_HELD_OUT_KEYS if rng.held_out else _KEYS)[name]) for name in names}
    values = {keys[name]: _value(thing, name) for name in names}
    properties = {keys[name]: _property(rng, name, _value(thing, name)) for name in names}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    answer, document = _written(rng, values), json.dumps(schema)
    return Form(
        answer=answer,
        # The beginning, too, is learnt as a choice between two: a model in doubt would begin with a token of its own.
        learnt=((0, 2), *(_span(answer, value) for value in values.items())),
        choices=('{"', "{\n"),
        grammar=Grammar(kind=GrammarKind.JSON_SCHEMA, text=document),
    )


def _value(thing: Thing, name: str) -> str:
    return thing.place.split(" the ")[1] if name == "place" else attribute(thing, name)


def _property(rng: SampleRng, name: str, value: str) -> dict[str, Any]:
    if name == "place" or rng.chance(0.6):
        return {"type": "string", "enum": _alternatives(rng, name, value)}
    return {"type": "string", "maxLength": 16} if rng.chance(0.5) else {"type": "string"}


def _alternatives(rng: SampleRng, name: str, value: str) -> list[str]:
    """The value among others of its kind, in any order."""
    others = [word for word in _WORDS[name] if word != value]
    if rng.chance(0.6):
        others = rng.some(others, rng.source.randint(1, min(4, len(others))))
    return rng.some([value, *others], len(others) + 1)


def _written(rng: SampleRng, document: Mapping[str, str]) -> str:
    """A document as JSON, nearly always in the form that `json.dumps` gives."""
    if rng.held_out or rng.chance(0.85):
        return json.dumps(document)
    return json.dumps(document, separators=(",", ":")) if rng.chance(0.5) else json.dumps(document, indent=2)


def _span(answer: str, member: tuple[str, str]) -> tuple[int, int]:
    """Where the value of a member stands, its closing quote included."""
    key, value = member
    start = answer.index('"', answer.index(f'"{key}":') + len(key) + 3) + 1
    return start, start + len(value) + 1


def _ask_choice(rng: SampleRng, scene: Scene, thing: Thing, name: str) -> tuple[str, Form] | None:
    question = _ask_attribute(rng, scene, thing, name)
    if question is None:
        return None
    value = _value(thing, name)
    choices = _alternatives(rng, name, value)
    if not rng.held_out and rng.chance(0.15):
        value, choices = value.capitalize(), [choice.capitalize() for choice in choices]
    form = Form(
        answer=value,
        learnt=((0, len(value) + 1),),
        choices=tuple(choices),
        grammar=Grammar(kind=GrammarKind.CHOICE, text=json.dumps(choices)),
    )
    return question, form
