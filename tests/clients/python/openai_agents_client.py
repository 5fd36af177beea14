"""The Agents SDK of OpenAI, with each of its two models: over Responses, its default, and over Chat Completions."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from driver import Outcome, Shapes, Task, drive, weather_tool
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from programs_client import run

set_tracing_disabled(True)


class Asks:
    """What agents with a model of this class are asked."""

    def __init__(self, model_class: type[OpenAIResponsesModel] | type[OpenAIChatCompletionsModel]) -> None:
        self._model_class = model_class

    def by_name(self) -> dict[str, Callable[[Task], Outcome]]:
        return {
            "plain": self.plain,
            "image": self.plain,
            "streamed": self.streamed,
            "schema": self.schema,
            "tool": partial(self._call_tools, is_streamed=False),
            "streamed_tool": partial(self._call_tools, is_streamed=True),
        }

    def plain(self, task: Task) -> Outcome:
        return Outcome(text=Runner.run_sync(self._agent(task), question(task)).final_output)

    def streamed(self, task: Task) -> Outcome:
        async def stream() -> Outcome:
            result = Runner.run_streamed(self._agent(task), question(task))
            events = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
            pieces = tuple(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent))
            assert result.final_output == "".join(pieces)
            return Outcome(pieces=pieces)

        return asyncio.run(stream())

    def schema(self, task: Task) -> Outcome:
        result = Runner.run_sync(self._agent(task, output_type=Shapes), question(task))
        return Outcome(value=result.final_output.model_dump())

    def _call_tools(self, task: Task, *, is_streamed: bool) -> Outcome:
        weather, calls = weather_tool(task)

        async def answer() -> str:
            agent = self._agent(task, tools=[function_tool(weather)])
            if not is_streamed:
                return (await Runner.run(agent, question(task))).final_output
            result = Runner.run_streamed(agent, question(task))
            async for _ in result.stream_events():
                pass
            return result.final_output

        text = asyncio.run(answer())
        return Outcome(text=text, calls=tuple(sorted(calls, key=lambda call: call.arguments["city"])))

    def _agent(self, task: Task, **options: Any) -> Agent[Any]:
        client = AsyncOpenAI(base_url=task.url, api_key="none", max_retries=0)
        model: Model = self._model_class(model=task.model, openai_client=client)
        settings = ModelSettings(temperature=0, max_tokens=task.max_tokens)
        return Agent("assistant", model=model, model_settings=settings, **options)


def question(task: Task) -> Any:
    image = {"type": "input_image", "image_url": task.image, "detail": "auto"}
    content = [image, {"type": "input_text", "text": task.question}]
    return [{"role": "user", "content": content}] if task.image else task.question


ASKS = {
    "OpenAI Agents": Asks(OpenAIResponsesModel).by_name(),
    "OpenAI Agents, chat": Asks(OpenAIChatCompletionsModel).by_name(),
    "Agents program": {"run": run},
}


if __name__ == "__main__":
    drive(ASKS.__getitem__)
