"""Drives a client: reads a task as a line of JSON and writes the outcome as a line of JSON.

Runs in both environments, so it uses only the standard library and pydantic.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request for the client to send."""

    url: str
    """Base URL of OpenAI's API, ending in /v1."""
    model: str
    max_tokens: int
    question: str
    image: str
    """A data URL; empty for text alone."""
    forecast: str
    """The result of the tool `weather`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call, as the client parsed it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the client received."""

    text: str = ""
    pieces: tuple[str, ...] = ()
    """Chunks of a streamed answer."""
    calls: tuple[Call, ...] = ()
    value: Mapping[str, Any] | None = None
    """A structured answer, as the client parsed it."""


class Shapes(BaseModel):
    """The content of an image. The schema keeps every answer short."""

    colour: Literal["red", "green", "blue"]
    count: int = Field(ge=0, le=9)
    round: bool


WEATHER = "weather"
WEATHER_DESCRIPTION = "The weather of a city in the next days."
WEATHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def openai_message(task: Task) -> Any:
    """The user's message in OpenAI's format."""
    image = {"type": "image_url", "image_url": {"url": task.image}}
    text = {"type": "text", "text": task.question}
    return {"role": "user", "content": [image, text] if task.image else task.question}


def openai_tool() -> Any:
    """The tool in OpenAI's format."""
    function = {"name": WEATHER, "description": WEATHER_DESCRIPTION, "parameters": WEATHER_PARAMETERS}
    return {"type": "function", "function": function}


def weather_tool(task: Task) -> tuple[Callable[[str, int], str], list[Call]]:
    """The tool as a function, and its calls."""
    calls: list[Call] = []

    def weather(city: str, days: int) -> str:
        """The weather of a city in the next days."""
        calls.append(Call(name=WEATHER, arguments={"city": city, "days": days}))
        return task.forecast

    return weather, calls


def call_of(name: str | None, arguments: str | None) -> Call:
    """A tool call from OpenAI's strings."""
    return Call(name=name or "", arguments=json.loads(arguments or ""))


def drive(asks_of: Callable[[str], Mapping[str, Callable[[Task], Outcome]]]) -> None:
    """Runs the function that each line of standard input names, of the client that it names."""
    # Output that libraries print must not mix with the outcomes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            outcome = asdict(asks_of(asked["client"])[asked["ask"]](Task(**asked["task"])))
        except Exception:  # libraries raise various errors, and the test shows them
            outcome = {"error": traceback.format_exc()}
        print(json.dumps(outcome), file=answers, flush=True)
