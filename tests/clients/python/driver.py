"""How a client is driven: a line of JSON says what to ask, a line of JSON says what came of it.

Runs in either environment, so it uses what both have: the standard library and pydantic.
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
    """What a client is to ask."""

    url: str
    """Of the OpenAI door, with its /v1."""
    model: str
    max_tokens: int
    question: str
    picture: str
    """A data URL; empty where there is none."""
    forecast: str
    """What the tool `weather` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a tool, as the client understood it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a client got."""

    text: str = ""
    pieces: tuple[str, ...] = ()
    """Of a streamed answer."""
    calls: tuple[Call, ...] = ()
    value: Mapping[str, Any] | None = None
    """A structured answer, as the client parsed it."""


class Shapes(BaseModel):
    """What is seen in a picture. Every answer of this form is short, whichever model gives it."""

    colour: Literal["red", "green", "blue"]
    count: int = Field(ge=0, le=9)
    round: bool


WEATHER = "weather"
WEATHER_DESCRIPTION = "The weather of a city in the next days."
WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def openai_message(task: Task) -> Any:
    """The user's message as OpenAI's API has it."""
    picture = {"type": "image_url", "image_url": {"url": task.picture}}
    text = {"type": "text", "text": task.question}
    return {"role": "user", "content": [picture, text] if task.picture else task.question}


def openai_tool() -> Any:
    """The tool as OpenAI's API has it."""
    function = {"name": WEATHER, "description": WEATHER_DESCRIPTION, "parameters": WEATHER_PARAMETERS}
    return {"type": "function", "function": function}


def call_of(name: str | None, arguments: str | None) -> Call:
    """A call from OpenAI's texts."""
    return Call(name=name or "", arguments=json.loads(arguments or ""))


def drive(**asks: Callable[[Task], Outcome]) -> None:
    """Answers each line of the standard input by the function that it names."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            outcome = asdict(asks[asked["ask"]](Task(**asked["task"])))
        except Exception:  # libraries raise what they like, and the test shows it
            outcome = {"error": traceback.format_exc()}
        print(json.dumps(outcome), file=answers, flush=True)
