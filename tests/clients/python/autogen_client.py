"""AutoGen: agents with output types, and their loop that runs tools."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    MultiModalMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_core import Image
from autogen_ext.models.openai import OpenAIChatCompletionClient
from driver import Call, Outcome, Shapes, Task


def agent(task: Task, **options: Any) -> AssistantAgent:
    client = OpenAIChatCompletionClient(
        model=task.model,
        base_url=task.url,
        api_key="none",
        max_retries=0,
        temperature=0,
        max_tokens=task.max_tokens,
        model_info={
            "vision": True,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        },
    )
    return AssistantAgent("assistant", model_client=client, system_message=None, **options)


def message(task: Task) -> Any:
    if not task.image:
        return TextMessage(content=task.question, source="user")
    image = Image.from_base64(task.image.split(",")[1])
    return MultiModalMessage(content=[image, task.question], source="user")


def answer(task: Task, **options: Any) -> Any:
    return asyncio.run(agent(task, **options).run(task=message(task))).messages[-1]


def plain(task: Task) -> Outcome:
    return Outcome(text=answer(task).content)


def streamed(task: Task) -> Outcome:
    async def pieces() -> tuple[str, ...]:
        stream = agent(task, model_client_stream=True).run_stream(task=message(task))
        return tuple([each.content async for each in stream if isinstance(each, ModelClientStreamingChunkEvent)])

    return Outcome(pieces=asyncio.run(pieces()))


def schema(task: Task) -> Outcome:
    message: StructuredMessage[Shapes] = answer(task, output_content_type=Shapes)
    return Outcome(value=message.content.model_dump())


def tool(task: Task) -> Outcome:
    calls: list[Call] = []

    async def weather(city: str, days: int) -> str:
        """The weather of a city in the next days."""
        calls.append(Call(name="weather", arguments={"city": city, "days": days}))
        return task.forecast

    text = answer(task, tools=[weather], reflect_on_tool_use=True).content
    return Outcome(text=text, calls=tuple(sorted(calls, key=lambda call: call.arguments["city"])))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
