"""openai-python's synchronous client, in two major versions."""

import base64
from typing import Any

from driver import Call, Outcome, Shapes, Task, call_of, openai_message, openai_tool
from openai import OpenAI


def create(task: Task, messages: list[Any], **options: Any) -> Any:
    completions = OpenAI(base_url=task.url, api_key="none", max_retries=0).chat.completions
    return completions.create(model=task.model, messages=messages, temperature=0, max_tokens=task.max_tokens, **options)


def plain(task: Task) -> Outcome:
    return Outcome(text=create(task, [openai_message(task)]).choices[0].message.content)


def streamed(task: Task) -> Outcome:
    chunks = create(task, [openai_message(task)], stream=True)
    return Outcome(pieces=tuple(choice.delta.content or "" for chunk in chunks for choice in chunk.choices))


def tool(task: Task) -> Outcome:
    messages = [openai_message(task)]
    choice = create(task, messages, tools=[openai_tool()]).choices[0]
    assert choice.finish_reason == "tool_calls"
    asked = choice.message.tool_calls
    messages += [
        choice.message,
        *({"role": "tool", "tool_call_id": call.id, "content": task.forecast} for call in asked),
    ]
    answer = create(task, messages, tools=[openai_tool()]).choices[0].message.content
    return Outcome(text=answer, calls=tuple(call_of(call.function.name, call.function.arguments) for call in asked))


def streamed_tool(task: Task) -> Outcome:
    """Puts the fragments together by hand, as programs do that use no helper."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in create(task, [openai_message(task)], tools=[openai_tool()], stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.id:
                names[call.index] = call.function.name
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    calls: tuple[Call, ...] = tuple(call_of(names[index], text) for index, text in sorted(arguments.items()))
    return Outcome(calls=calls)


def schema(task: Task) -> Outcome:
    completions = OpenAI(base_url=task.url, api_key="none", max_retries=0).chat.completions
    messages = [openai_message(task)]
    completion = completions.parse(
        model=task.model, messages=messages, max_tokens=task.max_tokens, response_format=Shapes
    )
    parsed = completion.choices[0].message.parsed
    assert parsed is not None
    return Outcome(value=parsed.model_dump())


def files(task: Task) -> Outcome:
    """Uploads the image, asks about it by its id, and deletes it."""
    data = base64.b64decode(task.image.partition(",")[2])
    with OpenAI(base_url=task.url, api_key="none", max_retries=0) as client:
        created = client.files.create(file=("image.png", data), purpose="vision")
        assert client.files.retrieve(created.id) == created
        assert created.id in [each.id for each in client.files.list(purpose="vision")]
        assert client.files.content(created.id).read() == data
        part = {"type": "file", "file": {"file_id": created.id}}
        text = {"type": "text", "text": task.question}
        answer = create(task, [{"role": "user", "content": [part, text]}]).choices[0].message.content
        assert client.files.delete(created.id).deleted
        assert created.id not in [each.id for each in client.files.list()]
    return Outcome(text=answer)


def document(task: Task) -> Outcome:
    """Asks about a PDF file, which the task has in place of an image."""
    part = {"type": "file", "file": {"filename": "scene.pdf", "file_data": task.image}}
    content = [part, {"type": "text", "text": task.question}]
    return Outcome(text=create(task, [{"role": "user", "content": content}]).choices[0].message.content)


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
    "files": files,
    "document": document,
}
