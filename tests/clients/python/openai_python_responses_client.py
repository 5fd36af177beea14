"""openai-python's client of the Responses API, in two major versions."""

from typing import Any

from driver import (
    WEATHER,
    WEATHER_DESCRIPTION,
    WEATHER_PARAMETERS,
    Call,
    Outcome,
    Shapes,
    Task,
    call_of,
)
from openai import APIStatusError, OpenAI
from openai.types.responses import Response

TOOL: Any = {
    "type": "function",
    "name": WEATHER,
    "description": WEATHER_DESCRIPTION,
    "parameters": WEATHER_PARAMETERS,
    "strict": True,
}


def responses(task: Task) -> Any:
    return OpenAI(base_url=task.url, api_key="none", max_retries=0).responses


def options(task: Task, **others: Any) -> Any:
    common = {"model": task.model, "temperature": 0, "max_output_tokens": task.max_tokens}
    return common | {"input": question(task)} | others


def question(task: Task) -> Any:
    image = {"type": "input_image", "image_url": task.image, "detail": "auto"}
    content = [image, {"type": "input_text", "text": task.question}]
    return [{"role": "user", "content": content}] if task.image else task.question


def checked(response: Any) -> Any:
    assert response.status == "completed"
    assert Response.model_validate(response.model_dump(by_alias=True), strict=True).id == response.id
    return response


def calls_of(response: Any) -> tuple[Call, ...]:
    return tuple(call_of(item.name, item.arguments) for item in response.output if item.type == "function_call")


def plain(task: Task) -> Outcome:
    return Outcome(text=checked(responses(task).create(**options(task))).output_text)


def streamed(task: Task) -> Outcome:
    events = list(responses(task).create(**options(task), stream=True))
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    pieces = tuple(event.delta for event in events if event.type == "response.output_text.delta")
    with responses(task).stream(**options(task)) as stream:
        assert checked(stream.get_final_response()).output_text == "".join(pieces)
    return Outcome(pieces=pieces)


def tool(task: Task) -> Outcome:
    asked = checked(responses(task).create(**options(task, tools=[TOOL])))
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": task.forecast}
        for item in asked.output
        if item.type == "function_call"
    ]
    items = [{"role": "user", "content": task.question}, *asked.output, *outputs]
    answer = checked(responses(task).create(**options(task, input=items, tools=[TOOL])))
    check_stored(task, asked, answer, outputs)
    return Outcome(text=answer.output_text, calls=calls_of(asked))


def check_stored(task: Task, asked: Any, answer: Any, outputs: Any) -> None:
    """Goes on from a stored response, counts its tokens, and reads, lists and deletes it."""
    client = responses(task)
    following = {"model": task.model, "input": outputs, "previous_response_id": asked.id, "tools": [TOOL]}
    assert client.input_tokens.count(**following).input_tokens == answer.usage.input_tokens
    same = client.create(**options(task, input=outputs, previous_response_id=asked.id, tools=[TOOL]))
    assert same.output_text == answer.output_text
    assert client.retrieve(asked.id) == asked
    listed = [item.call_id for item in client.input_items.list(same.id, order="asc") if item.type != "message"]
    assert listed == 2 * [output["call_id"] for output in outputs]  # those of the first turn are the calls
    assert refused(client.cancel, asked.id) == "unsupported"
    client.delete(asked.id)
    assert refused(client.retrieve, asked.id) == "response_not_found"


def refused(call: Any, name: str) -> str | None:
    try:
        call(name)
    except APIStatusError as error:
        return error.code
    return None


def streamed_tool(task: Task) -> Outcome:
    with responses(task).stream(**options(task, tools=[TOOL])) as stream:
        arguments = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    assert "".join(arguments) == "".join(item.arguments for item in response.output if item.type == "function_call")
    return Outcome(calls=calls_of(response))


def schema(task: Task) -> Outcome:
    parsed = responses(task).parse(**options(task), text_format=Shapes).output_parsed
    assert parsed is not None
    return Outcome(value=parsed.model_dump())


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
}
