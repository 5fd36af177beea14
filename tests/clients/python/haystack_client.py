"""Haystack: its generator of chat messages, and its agent that runs tools."""

from typing import Annotated, Any

from driver import Call, Outcome, Shapes, Task
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ImageContent
from haystack.tools import tool as make_tool
from haystack.utils import Secret


def generator(task: Task, **options: Any) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model=task.model,
        api_base_url=task.url,
        max_retries=0,
        generation_kwargs={"temperature": 0, "max_tokens": task.max_tokens, **options},
    )


def message(task: Task) -> ChatMessage:
    if not task.image:
        return ChatMessage.from_user(task.question)
    image = ImageContent(base64_image=task.image.split(",")[1], mime_type="image/png")
    return ChatMessage.from_user(content_parts=[image, task.question])


def reply(model: OpenAIChatGenerator, task: Task) -> str:
    return model.run([message(task)])["replies"][0].text or ""


def plain(task: Task) -> Outcome:
    return Outcome(text=reply(generator(task), task))


def streamed(task: Task) -> Outcome:
    pieces: list[str] = []
    generator(task).run([message(task)], streaming_callback=lambda chunk: pieces.append(chunk.content))
    return Outcome(pieces=tuple(pieces))


def schema(task: Task) -> Outcome:
    text = reply(generator(task, response_format=Shapes), task)
    return Outcome(value=Shapes.model_validate_json(text).model_dump())


def tool(task: Task) -> Outcome:
    calls: list[Call] = []

    @make_tool
    def weather(city: Annotated[str, "the city"], days: Annotated[int, "how many days"]) -> str:
        """The weather of a city in the next days."""
        calls.append(Call(name="weather", arguments={"city": city, "days": days}))
        return task.forecast

    agent = Agent(chat_generator=generator(task), tools=[weather])
    answer = agent.run(messages=[message(task)])["last_message"]
    return Outcome(text=answer.text, calls=tuple(sorted(calls, key=lambda call: call.arguments["city"])))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
