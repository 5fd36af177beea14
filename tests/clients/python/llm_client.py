"""llm, the library behind the command of this name: its model for OpenAI's API elsewhere."""

import base64
from typing import Any

import llm
from driver import Outcome, Shapes, Task, weather_tool
from llm.default_plugins.openai_models import Chat


def prompt(task: Task, *, stream: bool = False, **options: Any) -> Any:
    model = Chat(
        task.model,
        model_name=task.model,
        api_base=task.url,
        key="none",
        vision=True,
        supports_schema=True,
        supports_tools=True,
    )
    images = [llm.Attachment(content=base64.b64decode(task.image.split(",")[1]))] if task.image else []
    ask = model.chain if options.get("tools") else model.prompt
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": task.max_tokens}
    settings = {"options": settings} if options.get("tools") else settings
    return ask(task.question, attachments=images, stream=stream, **settings, **options)


def plain(task: Task) -> Outcome:
    return Outcome(text=prompt(task).text())


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(prompt(task, stream=True)))


def schema(task: Task) -> Outcome:
    return Outcome(value=Shapes.model_validate_json(prompt(task, schema=Shapes).text()).model_dump())


def tool(task: Task) -> Outcome:
    weather, calls = weather_tool(task)
    return Outcome(text=prompt(task, tools=[weather]).text(), calls=tuple(calls))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
