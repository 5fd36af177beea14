"""pydantic-ai: agents with native output types, and its loop that runs tools."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from driver import Outcome, Shapes, Task, weather_tool
from openai import AsyncOpenAI
from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def asks(
    model_class: type[OpenAIChatModel] | type[OpenAIResponsesModel],
) -> Mapping[str, Callable[[Task], Outcome]]:
    """Returns what agents with such a model are asked."""

    def agent(task: Task, **options: Any) -> Agent[None, Any]:
        client = AsyncOpenAI(base_url=task.url, api_key="none", max_retries=0)
        model = model_class(task.model, provider=OpenAIProvider(openai_client=client))
        return Agent(model, model_settings={"temperature": 0, "max_tokens": task.max_tokens}, retries=0, **options)

    def prompt(task: Task) -> Any:
        if not task.image:
            return task.question
        return [BinaryContent(base64.b64decode(task.image.split(",")[1]), media_type="image/png"), task.question]

    def plain(task: Task) -> Outcome:
        return Outcome(text=agent(task).run_sync(prompt(task)).output)

    def streamed(task: Task) -> Outcome:
        return Outcome(
            pieces=tuple(agent(task).run_stream_sync(prompt(task)).stream_text(delta=True, debounce_by=None))
        )

    def schema(task: Task) -> Outcome:
        return Outcome(value=agent(task, output_type=NativeOutput(Shapes)).run_sync(prompt(task)).output.model_dump())

    def tool(task: Task) -> Outcome:
        weather, calls = weather_tool(task)
        result = agent(task, tools=[weather]).run_sync(prompt(task))
        return Outcome(text=result.output, calls=tuple(sorted(calls, key=lambda call: call.arguments["city"])))

    return {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}


ASKS = asks(OpenAIChatModel)
