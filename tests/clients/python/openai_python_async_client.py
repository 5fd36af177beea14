"""openai-python's asynchronous client and its helpers: `parse` with pydantic's models, `stream` with its events."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai
import pydantic
from driver import WEATHER, WEATHER_DESCRIPTION, Outcome, Shapes, Task, call_of, openai_message
from openai import AsyncOpenAI


class Weather(pydantic.BaseModel):
    """The parameters of the tool."""

    city: str
    days: int


TOOL = openai.pydantic_function_tool(Weather, name=WEATHER, description=WEATHER_DESCRIPTION)


def options(task: Task) -> dict[str, Any]:
    return {"model": task.model, "temperature": 0, "max_tokens": task.max_tokens}


async def plain(completions: Any, task: Task) -> Outcome:
    completion = await completions.create(messages=[openai_message(task)], **options(task))
    return Outcome(text=completion.choices[0].message.content)


async def streamed(completions: Any, task: Task) -> Outcome:
    async with completions.stream(messages=[openai_message(task)], **options(task)) as events:
        pieces = [event.delta async for event in events if event.type == "content.delta"]
    return Outcome(pieces=tuple(pieces))  # get_final_completion raises for answers cut by the token limit


async def tool(completions: Any, task: Task) -> Outcome:
    messages = [openai_message(task)]
    completion = await completions.parse(messages=messages, tools=[TOOL], **options(task))
    message = completion.choices[0].message
    assert all(isinstance(call.function.parsed_arguments, Weather) for call in message.tool_calls)
    messages += [
        message,
        *({"role": "tool", "tool_call_id": call.id, "content": task.forecast} for call in message.tool_calls),
    ]
    answer = await completions.create(messages=messages, tools=[TOOL], **options(task))
    return Outcome(text=answer.choices[0].message.content, calls=calls_of(message))


async def streamed_tool(completions: Any, task: Task) -> Outcome:
    async with completions.stream(messages=[openai_message(task)], tools=[TOOL], **options(task)) as events:
        done = [event async for event in events if event.type == "tool_calls.function.arguments.done"]
        final = await events.get_final_completion()
    assert [event.name for event in done] == [call.function.name for call in final.choices[0].message.tool_calls]
    return Outcome(calls=calls_of(final.choices[0].message))


async def schema(completions: Any, task: Task) -> Outcome:
    messages = [openai_message(task)]
    async with completions.stream(messages=messages, response_format=Shapes, **options(task)) as events:
        final = await events.get_final_completion()
    return Outcome(value=final.choices[0].message.parsed.model_dump())


def calls_of(message: Any) -> tuple[Any, ...]:
    return tuple(call_of(call.function.name, call.function.arguments) for call in message.tool_calls)


def whole(ask: Callable[[Any, Task], Coroutine[Any, Any, Outcome]]) -> Callable[[Task], Outcome]:
    """Returns `ask` in an event loop and with a client of its own."""

    async def asked(task: Task) -> Outcome:
        async with AsyncOpenAI(base_url=task.url, api_key="none", max_retries=0) as client:
            return await ask(client.chat.completions, task)

    return lambda task: asyncio.run(asked(task))


ASKS = {
    "plain": whole(plain),
    "streamed": whole(streamed),
    "image": whole(plain),
    "tool": whole(tool),
    "streamed_tool": whole(streamed_tool),
    "schema": whole(schema),
}
