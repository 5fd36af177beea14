"""aisuite: OpenAI's chunks and messages as they are, and its own loop that runs tools."""

from typing import Any

import aisuite
from driver import Outcome, Shapes, Task, openai_message, weather_tool


def create(task: Task, **options: Any) -> Any:
    settings = {"openai": {"base_url": task.url, "api_key": "none", "max_retries": 0}}
    return aisuite.Client(settings).chat.completions.create(
        model=f"openai:{task.model}",
        messages=[openai_message(task)],
        temperature=0,
        max_tokens=task.max_tokens,
        **options,
    )


def plain(task: Task) -> Outcome:
    return Outcome(text=create(task).choices[0].message.content)


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(chunk.choices[0].delta.content or "" for chunk in create(task, stream=True)))


def schema(task: Task) -> Outcome:
    form = {"type": "json_schema", "json_schema": {"name": "shapes", "schema": Shapes.model_json_schema()}}
    text = create(task, response_format=form).choices[0].message.content
    return Outcome(value=Shapes.model_validate_json(text).model_dump())


def tool(task: Task) -> Outcome:
    """One turn: it sends results as JSON with escapes, in which the server of the test finds no reply."""
    weather, calls = weather_tool(task)
    create(task, tools=[weather], max_turns=1)
    return Outcome(calls=tuple(calls))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
