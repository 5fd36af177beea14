"""openai-python's synchronous client, in two major versions."""

import base64
import json
import time
from contextlib import suppress
from typing import Any

from driver import Call, Outcome, Shapes, Task, call_of, openai_message, openai_tool
from openai import BadRequestError, OpenAI


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


def batches(task: Task) -> Outcome:
    """Has a question about the image answered by a batch, and a request that fails beside it."""
    body = {"model": task.model, "messages": [openai_message(task)], "temperature": 0, "max_tokens": task.max_tokens}
    requests = {"good": body, "bad": {**body, "model": "another"}}
    lines = (
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": each})
        for name, each in requests.items()
    )
    with OpenAI(base_url=task.url, api_key="none", max_retries=0) as client:
        file = client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"by": "a test"}
        )
        assert batch.id in [each.id for each in client.batches.list(limit=5)]
        while batch.status in ("validating", "in_progress", "finalizing"):
            time.sleep(0.1)
            batch = client.batches.retrieve(batch.id)
        assert (batch.status, batch.metadata) == ("completed", {"by": "a test"})
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
        answer, error = (
            json.loads(client.files.content(str(each)).text) for each in (batch.output_file_id, batch.error_file_id)
        )
        assert (answer["custom_id"], error["custom_id"]) == ("good", "bad")
        assert error["response"]["status_code"] == 404
        with suppress(BadRequestError):
            client.batches.cancel(batch.id)
        assert client.batches.retrieve(batch.id) == batch
    return Outcome(text=answer["response"]["body"]["choices"][0]["message"]["content"])


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
    "batches": batches,
    "document": document,
}
