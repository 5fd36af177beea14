"""instructor with openai-python: pydantic models by tools and by JSON schemas, unary and streamed."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import instructor
from driver import Call, Outcome, Shapes, Task
from instructor import Mode
from instructor.processing.multimodal import Image
from openai import OpenAI
from pydantic import BaseModel


class weather(BaseModel):  # noqa: N801 - the tool has the class's name
    """The weather of a city in the next days."""

    city: str
    days: int


def create(task: Task, mode: Mode, response_model: Any, **options: Any) -> Any:
    client = instructor.from_openai(OpenAI(base_url=task.url, api_key="none", max_retries=0), mode=mode)
    content: Any = [Image.from_base64(task.image), task.question] if task.image else task.question
    return client.chat.completions.create(
        model=task.model,
        messages=[{"role": "user", "content": content}],
        response_model=response_model,
        temperature=0,
        max_tokens=task.max_tokens,
        max_retries=0,
        **options,
    )


def plain(task: Task) -> Outcome:
    return Outcome(text=create(task, Mode.TOOLS, None).choices[0].message.content)


def streamed(task: Task) -> Outcome:
    chunks = create(task, Mode.TOOLS, None, stream=True)
    return Outcome(pieces=tuple(chunk.choices[0].delta.content or "" for chunk in chunks))


def tool(task: Task) -> Outcome:
    """Several calls in one answer; what comes of them is the caller's, so that there is no second question."""
    asked = create(task, Mode.PARALLEL_TOOLS, Iterable[weather])
    return Outcome(calls=tuple(map(call_of, asked)))


def streamed_tool(task: Task) -> Outcome:
    """A model that grows while its call's arguments come in; the tool is named after the growing model."""
    growing = instructor.Partial[weather]
    renamed = replace(task, question=task.question.replace("weather", growing.__name__))
    *_, grown = create(renamed, Mode.TOOLS, growing, stream=True)
    return Outcome(calls=(call_of(grown),))


def schema(task: Task) -> Outcome:
    return Outcome(value=create(task, Mode.JSON_SCHEMA, Shapes).model_dump())


def call_of(asked: weather) -> Call:
    return Call(name="weather", arguments=asked.model_dump())


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
}
