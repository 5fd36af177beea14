"""LiteLLM's provider for OpenAI-compatible servers."""

from typing import Any

import litellm
from driver import Call, Outcome, Shapes, Task, call_of, openai_message, openai_tool


def create(task: Task, messages: list[Any], **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{task.model}",
        api_base=task.url,
        api_key="none",
        messages=messages,
        temperature=0,
        max_tokens=task.max_tokens,
        max_retries=0,
        _skip_mcp_handler=True,  # a question with tools would load LiteLLM's proxy, half a minute of imports
        **options,
    )


def plain(task: Task) -> Outcome:
    return Outcome(text=create(task, [openai_message(task)]).choices[0].message.content)


def streamed(task: Task) -> Outcome:
    chunks = create(task, [openai_message(task)], stream=True)
    return Outcome(pieces=tuple(chunk.choices[0].delta.content or "" for chunk in chunks))


def tool(task: Task) -> Outcome:
    messages = [openai_message(task)]
    choice = create(task, messages, tools=[openai_tool()]).choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    messages.append(choice.message)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": task.forecast} for call in calls]
    answer = create(task, messages, tools=[openai_tool()]).choices[0].message.content
    return Outcome(text=answer, calls=calls_of(calls))


def streamed_tool(task: Task) -> Outcome:
    chunks = list(create(task, [openai_message(task)], tools=[openai_tool()], stream=True))
    built: Any = litellm.stream_chunk_builder(chunks)
    return Outcome(calls=calls_of(built.choices[0].message.tool_calls))


def schema(task: Task) -> Outcome:
    completion = create(task, [openai_message(task)], response_format=Shapes)
    return Outcome(value=Shapes.model_validate_json(completion.choices[0].message.content).model_dump())


def calls_of(calls: list[Any]) -> tuple[Call, ...]:
    return tuple(call_of(call.function.name, call.function.arguments) for call in calls)


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
}
