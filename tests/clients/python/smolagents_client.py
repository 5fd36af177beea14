"""smolagents: its model for OpenAI-compatible servers, which its agents use, with the tools that they describe."""

import json
from typing import Any

from driver import Call, Outcome, Shapes, Task, openai_message
from smolagents import OpenAIModel
from smolagents import tool as make_tool


def model(task: Task) -> OpenAIModel:
    return OpenAIModel(
        task.model,
        api_base=task.url,
        api_key="none",
        client_kwargs={"max_retries": 0},
        temperature=0,
        max_tokens=task.max_tokens,
    )


def messages(task: Task) -> Any:
    message = openai_message(task)
    return [message if task.image else message | {"content": [{"type": "text", "text": task.question}]}]


def plain(task: Task) -> Outcome:
    return Outcome(text=str(model(task).generate(messages(task)).content))


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(delta.content or "" for delta in model(task).generate_stream(messages(task))))


def schema(task: Task) -> Outcome:
    form: Any = {"type": "json_schema", "json_schema": {"name": "shapes", "schema": Shapes.model_json_schema()}}
    text = str(model(task).generate(messages(task), response_format=form).content)
    return Outcome(value=Shapes.model_validate_json(text).model_dump())


def tool(task: Task) -> Outcome:
    """What its agents do first. They send results back in words of their own, so that there is no second question."""

    @make_tool
    def weather(city: str, days: int) -> str:
        """The weather of a city in the next days.

        Args:
            city: the city
            days: how many days
        """
        return f"{city} {days}"

    asked = model(task).generate(messages(task), tools_to_call_from=[weather])
    found = [call.function for call in asked.tool_calls or ()]
    return Outcome(calls=tuple(Call(name=each.name, arguments=parsed(each.arguments)) for each in found))


def parsed(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
