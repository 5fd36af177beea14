"""mirascope: prompts as functions, formats as classes, and tools that the caller runs."""

from typing import Any

from driver import Outcome, Shapes, Task, weather_tool
from mirascope import llm


def content(task: Task) -> Any:
    if not task.image:
        return task.question
    source = llm.Base64ImageSource(type="base64_image_source", data=task.image.split(",")[1], mime_type="image/png")
    return [llm.Image(source=source), task.question]


def model(task: Task) -> Any:
    # Its provider for servers that speak OpenAI's API.
    llm.register_provider("ollama", scope="ollama/", api_key="none", base_url=task.url)
    return llm.model(f"ollama/{task.model}", temperature=0, max_tokens=task.max_tokens)


def plain(task: Task) -> Outcome:
    return Outcome(text=model(task).call(content(task)).text())


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(model(task).stream(content(task)).text_stream()))


def schema(task: Task) -> Outcome:
    response = model(task).call(content(task), format=llm.format(Shapes, mode="strict"))
    return Outcome(value=response.parse().model_dump())


def tool(task: Task) -> Outcome:
    weather, calls = weather_tool(task)
    response = model(task).call(content(task), tools=[llm.tool(weather)])
    answer = response.resume(response.execute_tools())
    return Outcome(text=answer.text(), calls=tuple(calls))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
