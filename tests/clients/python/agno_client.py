"""Agno: agents with output schemas, and their loop that runs tools."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from agno.agent import Agent
from agno.media import Image
from agno.models.base import Model
from agno.models.openai.like import OpenAILike
from driver import Outcome, Shapes, Task, weather_tool


def asks(model_class: Callable[..., Model], *, most: str) -> Mapping[str, Callable[[Task], Outcome]]:
    """Returns what agents with such a model are asked; `most` is its word for the limit of tokens."""

    def run(task: Task, stream: bool = False, **options: Any) -> Any:
        model = model_class(
            id=task.model,
            base_url=task.url,
            api_key="none",
            max_retries=0,
            temperature=0,
            **{most: task.max_tokens},
        )
        images = [Image(content=base64.b64decode(task.image.split(",")[1]))] if task.image else []
        return Agent(model=model, telemetry=False, **options).run(task.question, images=images, stream=stream)

    def plain(task: Task) -> Outcome:
        return Outcome(text=run(task).content)

    def streamed(task: Task) -> Outcome:
        return Outcome(
            pieces=tuple(
                event.content for event in run(task, stream=True) if event.event == "RunContent" and event.content
            )
        )

    def schema(task: Task) -> Outcome:
        return Outcome(value=run(task, output_schema=Shapes).content.model_dump())

    def tool(task: Task) -> Outcome:
        weather, calls = weather_tool(task)
        answer = run(task, tools=[weather])
        return Outcome(text=answer.content, calls=tuple(calls))

    return {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}


ASKS = asks(OpenAILike, most="max_tokens")
