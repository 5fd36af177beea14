"""The task of calling a function: when to, which one, with which arguments, and what to say of its result."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.training.drawing.draw import draw_image
from models.training.drawing.scene import draw_look, draw_scene
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample, SampleImage, Turn
from models.training.tasks.as_json import attribute
from models.training.tasks.chat import small_talk_sample
from models.training.tasks.check import Calls, Mentions
from models.training.tasks.reading import draw_sign, draw_sign_image
from models.training.tasks.still import still_sample
from models.training.tasks.talk import Exchange, conversation
from models.training.tasks.words import any_name, draw_text

CITIES = (
    *("Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Oslo", "Cairo", "Lima", "Tokyo", "Delhi", "Boston"),
    *("Prague", "Dublin", "Athens", "Warsaw", "Moscow", "Lyon", "Milan", "Zurich", "Quito", "Seoul", "Hanoi", "Kyiv"),
    *("Graz", "Bern", "Porto", "Nice", "Dakar", "Accra", "Malmo", "Turin", "Basel", "Ghent", "Leeds", "Cork"),
)
HELD_OUT_CITIES = ("Lisbon", "Bonn", "Riga", "Tunis", "Sofia", "Osaka", "Miami", "Perth", "Bath", "Linz")

VERBS = ("report", "save", "store", "log", "submit", "record", "send", "set", "note", "add")
_TOPICS: Mapping[str, tuple[str, ...]] = {
    "shape": ("shape", "form"),
    "colour": ("colour", "color"),
    "size": ("size",),
    "place": ("place", "position"),
    "text": ("text", "word", "value"),
    "count": ("count", "number"),
}
"""What a function may be told of an image → names of its parameters."""

USE = Templates(
    learnt=(
        "(Call|Use|Please call|Please use) {name}( for this picture| on the picture| for this image|).",
        "(Report|Save|Send|Store|Record) the {what}.",
        "(Report|Save|Send|Store|Record) the {what} (of|in) (the|this) (picture|image)( with the tool| with {name}|).",
        "(Use|Call) the (tool|function) for this (picture|image).",
        "(Look at the picture and|Please) (call|use) {name}.",
        "(I want|I would like|I need) you to (use|run) {name}( on this picture| now|).",
        "(Please|Now) (save|store|send|report) the {what} of (this|the) (picture|image|photo).",
        "(Run|Try|Make use of) (your tool|the function|{name}|a tool)( on the picture| with this image| here|).",
        "(Could|Can) you (call|use) {name}( for me|)?",
    ),
    held_out=(
        "I want you to call {name}.",
        "Please record the {what} of this picture.",
        "Use your tool on this picture.",
    ),
)
WEATHER = Templates(
    learnt=(
        "(What is|What's|How is) the weather (in|like in) {city}( today| now|)?",
        "(Is it|Will it be) (cold|warm|sunny|raining|hot) in {city}?",
        "(Tell me|Get) the weather (for|in) {city}.",
        "Weather in {city}?",
        "(How warm|How cold|How hot) (will it be|is it now) in {city}?",
        "(I want|I need) to know (the weather|how the weather is) in {city}.",
        "(Can you say|Do you know) (what the weather is like|if it rains) in {city}?",
    ),
    held_out=("How warm is it in {city}?", "I would like to know the weather in {city}."),
)
TIMER = Templates(
    learnt=(
        "Set a timer (for|of) {minutes} minutes.",
        "(Wake me|Call me|Remind me) in {minutes} minutes.",
        "(Start|I need) a timer (for|of) {minutes} minutes( please|).",
        "Timer: {minutes} minutes.",
        "(Please|Can you) (set|make) a {minutes} minute timer(.|!)",
        "(I would like|Give me) a timer (of|for) {minutes} minutes.",
    ),
    held_out=("Please start a {minutes} minute timer.",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A wish that one function fulfils."""

    tool: dict[str, Any]
    """The function, as the OpenAI API describes it."""
    media: tuple[SampleImage, ...]
    """What the user sends."""
    question: str
    """What the user says."""
    arguments: Mapping[str, Any]
    """What the function is to be called with."""
    result: str
    """What the function gives back."""
    answer: str
    """What is then to be said."""


def tool_sample(task: str, rng: SampleRng) -> Sample:
    """A conversation with functions at hand."""
    wish = rng.one(_WISHES)(rng)
    others = [rng.one(_WISHES)(rng).tool for _ in range(rng.source.randint(0, 2))]
    # One of each kind: of two functions for the same thing nobody could tell which to call.
    tools = tuple({tool["function"]["description"]: tool for tool in (*others, wish.tool)}.values())
    tools = tuple(rng.some(tools, len(tools)))
    if rng.chance(0.25):
        return replace(_without_call(rng, task), tools=tools)
    arguments = json.dumps(wish.arguments, ensure_ascii=False)
    call = f'<tool_call>\n{{"name": "{_name(wish.tool)}", "arguments": {arguments}}}\n</tool_call>'
    exchange = Exchange(question=wish.question, answer=call, check=Calls(_name(wish.tool), arguments))
    sample = replace(conversation(rng, task, wish.media, [exchange]), tools=tools)
    return _with_result(sample, wish) if rng.chance(0.25) else sample


def _with_result(sample: Sample, wish: Task) -> Sample:
    """The conversation after the function was called."""
    turns = (
        *sample.turns,
        Turn(role="tool", content=(wish.result,)),
        Turn(role="assistant", content=(wish.answer,)),
    )
    return replace(sample, turns=turns, check=Mentions(needed=(wish.answer.rstrip(".").split()[-1],)))


def _without_call(rng: SampleRng, task: str) -> Sample:
    """A question that needs none of the functions."""
    if rng.chance(0.25):
        return small_talk_sample(task, rng)
    return replace(still_sample(rng.one(("describe", "colour", "shape", "count", "place", "yes_no")), rng), task=task)


def _report(rng: SampleRng) -> Task:
    """Something of an image is to be reported."""
    media, facts = rng.one((_shape_facts, _shape_facts, _text_facts, _count_facts))(rng)
    names = {fact: rng.one(_TOPICS[fact]) for fact in facts}
    tool = _function(f"{any_name(rng, VERBS)}_{'object' if len(facts) > 1 else rng.one(list(names.values()))}", names)
    what = " and ".join(facts) if len(facts) < 3 else "object"
    return Task(
        tool=tool,
        media=(media,),
        question=_plain(rng, USE, name=_name(tool), what=what),
        arguments={names[fact]: value for fact, value in facts.items()},
        result=rng.one(('{"ok": true}', "ok", "done", '{"status": "ok"}', "saved", "true")),
        answer="It is done.",
    )


def _shape_facts(rng: SampleRng) -> tuple[SampleImage, dict[str, Any]]:
    scene = draw_scene(rng, [draw_look(rng, sized=True)])
    facts = rng.some(("shape", "colour", "size", "place"), rng.weighted({1: 0.4, 2: 0.4, 3: 0.2}))
    return draw_image(rng, scene), {fact: attribute(scene.things[0], fact) for fact in facts}


def _text_facts(rng: SampleRng) -> tuple[SampleImage, dict[str, Any]]:
    sign = draw_sign(rng, draw_text(rng))
    return draw_sign_image(rng, sign), {"text": sign.text}


def _count_facts(rng: SampleRng) -> tuple[SampleImage, dict[str, Any]]:
    scene = draw_scene(rng, [draw_look(rng) for _ in range(rng.source.randint(1, 6))])
    return draw_image(rng, scene), {"count": len(scene.things)}


def _weather(rng: SampleRng) -> Task:
    city = any_name(rng, HELD_OUT_CITIES if rng.held_out else CITIES).capitalize()
    name = rng.one(("get_weather", "weather", "weather_in", "current_weather"))
    key = rng.one(("city", "location", "place"))
    sky = rng.one(("sunny", "cloudy", "rainy", "windy", "cold", "warm", "foggy"))
    return Task(
        tool=_tool(name, "Gets the weather.", {key: {"type": "string"}}),
        media=(),
        question=_plain(rng, WEATHER, city=city),
        arguments={key: city},
        result=rng.one((sky, json.dumps({"weather": sky}), json.dumps({"sky": sky}))),
        answer=f"It is {sky}.",
    )


def _timer(rng: SampleRng) -> Task:
    minutes = rng.source.randint(2, 60)
    key = rng.one(("minutes", "duration", "time"))
    return Task(
        tool=_tool(rng.one(("set_timer", "start_timer", "timer")), "Starts a timer.", {key: {"type": "integer"}}),
        media=(),
        question=_plain(rng, TIMER, minutes=minutes),
        arguments={key: minutes},
        result=rng.one(('{"ok": true}', "ok", "started")),
        answer="It is done.",
    )


def _function(name: str, names: Mapping[str, str]) -> dict[str, Any]:
    kinds = {fact: "integer" if fact == "count" else "string" for fact in names}
    return _tool(name, "Saves what is in the picture.", {names[fact]: {"type": kinds[fact]} for fact in names})


def _tool(name: str, description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_WISHES = (_report, _report, _report, _weather, _timer)


def _name(tool: Mapping[str, Any]) -> str:
    return tool["function"]["name"]


def _plain(rng: SampleRng, forms: Templates, **words: object) -> str:
    """A wish whose names stay as they are."""
    return " ".join(rng.say(forms, **words).split()).replace(" .", ".")
