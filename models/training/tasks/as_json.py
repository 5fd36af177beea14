"""The task of answering as JSON: in a form that the user names, or in our own."""

import json
from collections.abc import Mapping
from typing import Any

from models.training.drawing.draw import draw_image
from models.training.drawing.scene import Thing, draw_look, draw_scene
from models.training.drawing.shapes import SHAPES
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample, SampleImage
from models.training.tasks.check import IsJson
from models.training.tasks.phrases import listed, plural, with_article
from models.training.tasks.reading import draw_sign, draw_sign_image
from models.training.tasks.still import crowd
from models.training.tasks.talk import Exchange, conversation
from models.training.tasks.words import any_name, draw_text

_IMAGE = "(picture|image|photo|picture|image)"
_AS_JSON = "(as JSON|in JSON|as JSON only|in JSON format|with JSON)"

DESCRIBE = Templates(
    learnt=(
        f"(Describe|Please describe) (the|this) {_IMAGE} {_AS_JSON}.",
        f"What is in (the|this) {_IMAGE}? (Answer|Reply|Respond) {_AS_JSON}.",
        f"(List|Name) the objects {_AS_JSON}.",
        f"What do you see? (Answer|Reply|Respond) {_AS_JSON}.",
        f"(Give me|Return|Output) the (objects|shapes) (in this {_IMAGE}|) {_AS_JSON}.",
        f"JSON description of (the|this) {_IMAGE}.",
        f"(Tell me|Say|Write|Write down) {_AS_JSON} what (is in the {_IMAGE}|you see|there is).",
        f"(I want|I need|I would like) the (objects|shapes|things) {_AS_JSON}.",
        f"(Use|Write|Only) JSON: what (is shown|can be seen|is in this {_IMAGE})?",
    ),
    held_out=(f"Please answer {_AS_JSON}: what is in the {_IMAGE}?", f"Tell me {_AS_JSON} what is shown."),
)
WITH_KEYS = Templates(
    learnt=(
        f"(Describe|Please describe) (the object|the {_IMAGE}) {_AS_JSON} with the (keys|members|fields) {{keys}}.",
        f"(Answer|Reply) {_AS_JSON} with {{keys}}: what is in the {_IMAGE}?",
        f"What is in (the|this) {_IMAGE}? (Answer|Reply|Respond) {_AS_JSON} with the (keys|fields) {{keys}}.",
        "(Return|Give me|Output) (JSON|a JSON object) with {keys}.",
        "JSON with {keys}, please.",
        "Describe it as a JSON object with (the keys|) {keys}.",
        f"(I want|I would like|Please give me) (JSON|a JSON object) with {{keys}} (for|of) (the|this) {_IMAGE}.",
        f"(Write|Tell me) {_AS_JSON} what is (shown|in the {_IMAGE}), (with|using) {{keys}}.",
        f"Fill a JSON object (that has|with) the (keys|fields) {{keys}} for the (object|{_IMAGE}).",
    ),
    held_out=(
        f"I need a JSON object with {{keys}} for this {_IMAGE}.",
        f"Please write {_AS_JSON} what you see, using the keys {{keys}}.",
    ),
)
COUNT = Templates(
    learnt=(
        f'How many {{many}} are (there|in the {_IMAGE})? (Answer|Reply|Respond) {_AS_JSON} with the key "{{key}}".',
        f'Count the {{many}} and (answer|reply) {_AS_JSON} with "{{key}}".',
        'How many {many}? (Return|Give me) JSON: {{"{key}": number}}',
        'Count the {many}. (Format|Form): {{"{key}": ...}}',
    ),
    held_out=(f'Please count the {{many}}; answer {_AS_JSON} like {{{{"{{key}}": 0}}}}.',),
)
READ = Templates(
    learnt=(
        f'(Read|Transcribe) the text and (answer|reply) {_AS_JSON} with the key "{{key}}".',
        f'What does it say? (Answer|Reply|Respond) {_AS_JSON} with the key "{{key}}".',
        'What is written? (Return|Give me) JSON: {{"{key}": text}}',
        'Read it. (Format|Form): {{"{key}": "..."}}',
    ),
    held_out=('Which text is it? Write JSON with the key "{key}".',),
)
IS_THERE = Templates(
    learnt=(
        f'Is there {{a}}? (Answer|Reply|Respond) {_AS_JSON} with the key "{{key}}".',
        'Do you see {a}? (Return|Give me) JSON: {{"{key}": true or false}}',
        f'Does the {_IMAGE} show {{a}}? (Format|Form): {{{{"{{key}}": true}}}} or {{{{"{{key}}": false}}}}',
    ),
    held_out=('Can you see {a}? Reply with JSON: {{"{key}": true}} or {{"{key}": false}}.',),
)

_KEYS: Mapping[str, tuple[str, ...]] = {
    "shape": ("shape", "shape", "form", "object"),
    "colour": ("colour", "color", "colour", "color"),
    "size": ("size", "size"),
    "place": ("place", "position", "location"),
}
"""Attribute → what users may call it."""


def json_sample(task: str, rng: SampleRng) -> Sample:
    """A question whose answer is JSON."""
    ask = rng.weighted({_ask_description: 3, _ask_keys: 4, _ask_count: 2, _ask_text: 2, _ask_is_there: 1.5})
    picture, question, document = ask(rng)
    answer = json.dumps(document, ensure_ascii=False)
    return conversation(rng, task, [picture], [Exchange(question=question, answer=answer, check=IsJson(answer))])


def attribute(thing: Thing, name: str) -> str:
    """A thing's shape, colour, size or place, in as few words as possible."""
    match name:
        case "place":
            return thing.place.removeprefix("at the ").removeprefix("on the ").removeprefix("in the ")
        case _:
            return getattr(thing, name)


Questions = tuple[SampleImage, str, Any]
"""An image, the question about it, and the answer's document."""


def _ask_description(rng: SampleRng) -> Questions:
    looks = [draw_look(rng, sized=True) for _ in range(rng.weighted({1: 0.5, 2: 0.3, 3: 0.2}))]
    scene = draw_scene(rng, looks, own_cells=True)
    document = [{name: attribute(thing, name) for name in _KEYS} for thing in scene.things]
    return draw_image(rng, scene), rng.ask(DESCRIBE), document


def _ask_keys(rng: SampleRng) -> Questions:
    scene = draw_scene(rng, [draw_look(rng, sized=True)])
    names = rng.some(tuple(_KEYS), rng.source.randint(1, 4))
    keys = {rng.one(_KEYS[name]): attribute(scene.things[0], name) for name in names}
    return draw_image(rng, scene), _with_names(rng, WITH_KEYS, keys=_quoted(rng, tuple(keys))), keys


def _ask_count(rng: SampleRng) -> Questions:
    scene = draw_scene(rng, crowd(rng))
    key = any_name(rng, ("count", "number", "n", "total", "answer"))
    shape = rng.one([*(thing.shape for thing in scene.things), None])
    number = len(scene.things) if shape is None else sum(thing.shape == shape for thing in scene.things)
    many = "objects" if shape is None else plural(shape)
    return draw_image(rng, scene), _with_names(rng, COUNT, many=many, key=key), {key: number}


def _ask_text(rng: SampleRng) -> Questions:
    sign = draw_sign(rng, draw_text(rng))
    key = any_name(rng, ("text", "word", "value", "answer", "content"))
    return draw_sign_image(rng, sign), _with_names(rng, READ, key=key), {key: sign.text}


def _ask_is_there(rng: SampleRng) -> Questions:
    scene = draw_scene(rng, [draw_look(rng) for _ in range(rng.source.randint(1, 3))])
    shape = rng.one([*(thing.shape for thing in scene.things), rng.one(SHAPES), rng.one(SHAPES)])
    key = any_name(rng, ("answer", "result", "present", "found"))
    question = _with_names(rng, IS_THERE, a=with_article(shape), key=key)
    return draw_image(rng, scene), question, {key: any(thing.shape == shape for thing in scene.things)}


def _with_names(rng: SampleRng, forms: Templates, **words: object) -> str:
    """A question whose keys stay as they are: no other spelling, no other case."""
    return " ".join(rng.say(forms, **words).split())


def _quoted(rng: SampleRng, keys: tuple[str, ...]) -> str:
    """'"shape" and "colour"', or without quotation marks."""
    mark = '"' if rng.chance(0.6) else ""
    marked = [f"{mark}{key}{mark}" for key in keys]
    return ", ".join(marked) if rng.chance(0.4) else listed(marked)
