"""Anthropic's client of the Messages API."""

import base64
from typing import Any

from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from driver import WEATHER, WEATHER_DESCRIPTION, WEATHER_PARAMETERS, Call, Outcome, Shapes, Task

TOOL: Any = {"name": WEATHER, "description": WEATHER_DESCRIPTION, "input_schema": WEATHER_PARAMETERS}


def client(task: Task) -> Anthropic:
    return Anthropic(base_url=task.url.removesuffix("/v1"), api_key="none", max_retries=0)


def options(task: Task, **others: Any) -> Any:
    common = {"model": task.model, "max_tokens": task.max_tokens, "extra_body": {"temperature": 0}}
    return common | {"messages": [question(task)]} | others


def question(task: Task) -> Any:
    data = task.image.partition(",")[2]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    text = {"type": "text", "text": task.question}
    return {"role": "user", "content": [image, text] if task.image else task.question}


def text_of(message: Message) -> str:
    assert message == Message.model_validate(message.model_dump(), strict=True)
    return "".join(block.text for block in message.content if block.type == "text")


def calls_of(message: Message) -> tuple[Call, ...]:
    return tuple(Call(name=block.name, arguments=block.input) for block in message.content if block.type == "tool_use")


def plain(task: Task) -> Outcome:
    message = client(task).messages.create(**options(task))
    assert message.stop_reason == "end_turn"
    return Outcome(text=text_of(message))


def streamed(task: Task) -> Outcome:
    events: list[RawMessageStreamEvent] = list(client(task).messages.create(**options(task), stream=True))
    assert [event.type for event in events][:2] == ["message_start", "content_block_start"]
    assert [event.type for event in events][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return Outcome(pieces=tuple(delta.text for delta in deltas if delta.type == "text_delta"))


def tool(task: Task) -> Outcome:
    messages = [question(task)]
    asked = client(task).messages.create(**options(task, messages=messages, tools=[TOOL]))
    assert asked.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": task.forecast}
        for block in asked.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": asked.content}, {"role": "user", "content": results}]
    answer = client(task).messages.create(**options(task, messages=messages, tools=[TOOL]))
    return Outcome(text=text_of(answer), calls=calls_of(asked))


def streamed_tool(task: Task) -> Outcome:
    with client(task).messages.stream(**options(task, tools=[TOOL])) as stream:
        return Outcome(calls=calls_of(stream.get_final_message()))


def schema(task: Task) -> Outcome:
    # Not by `parse`, which takes the bounds of numbers out of the schema.
    form = {"type": "json_schema", "schema": Shapes.model_json_schema()}
    message = client(task).messages.create(**options(task, output_config={"format": form}))
    return Outcome(value=Shapes.model_validate_json(text_of(message)).model_dump())


def document(task: Task) -> Outcome:
    """Asks about a PDF file, which the task has in place of an image."""
    data = task.image.partition(",")[2]
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    content = [{"type": "document", "source": source}, {"type": "text", "text": task.question}]
    messages = [{"role": "user", "content": content}]
    return Outcome(text=text_of(client(task).messages.create(**options(task, messages=messages))))


def files(task: Task) -> Outcome:
    """Uploads the image, asks about it by its id, and deletes it."""
    messages, kept = client(task).beta.messages, client(task).beta.files
    image = base64.b64decode(task.image.partition(",")[2])
    name = kept.upload(file=("image.png", image, "image/png")).id
    content = [{"type": "image", "source": {"type": "file", "file_id": name}}, {"type": "text", "text": task.question}]
    asked = options(task, messages=[{"role": "user", "content": content}], betas=["files-api-2025-04-14"])
    message = messages.create(**asked)
    assert name in [file.id for file in kept.list()]
    assert kept.download(name).read() == image
    kept.delete(name)
    return Outcome(text="".join(block.text for block in message.content if block.type == "text"))


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
    "document": document,
    "files": files,
}
