"""magentic: answers as Python types, and parallel function calls."""

import base64
from typing import Any

from driver import Outcome, Shapes, Task, weather_tool
from magentic import Chat, OpenaiChatModel, ParallelFunctionCall, StreamedStr, UserMessage
from magentic.chat_model.message import ImageBytes


def ask(task: Task, *output_types: Any, functions: Any = ()) -> Any:
    model = OpenaiChatModel(task.model, api_key="none", base_url=task.url, temperature=0, max_tokens=task.max_tokens)
    content: Any = task.question
    if task.image:
        content = [ImageBytes(base64.b64decode(task.image.split(",")[1])), task.question]
    chat = Chat([UserMessage(content)], output_types=list(output_types), functions=list(functions), model=model)
    return chat.submit()


def plain(task: Task) -> Outcome:
    return Outcome(text=ask(task, str).last_message.content)


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(ask(task, StreamedStr).last_message.content))


def schema(task: Task) -> Outcome:
    return Outcome(value=ask(task, Shapes).last_message.content.model_dump())


def tool(task: Task) -> Outcome:
    weather, calls = weather_tool(task)
    chat = ask(task, str, ParallelFunctionCall[str], functions=[weather]).exec_function_call()
    return Outcome(text=chat.submit().last_message.content, calls=tuple(calls))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
