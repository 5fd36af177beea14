"""LangChain's ChatOpenAI: `bind_tools` and `with_structured_output`."""

from typing import Any

from driver import WEATHER, WEATHER_DESCRIPTION, Call, Outcome, Shapes, Task, openai_message
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool as make_tool
from langchain_openai import ChatOpenAI


@make_tool(WEATHER, description=WEATHER_DESCRIPTION)
def weather(city: str, days: int) -> str:
    raise NotImplementedError  # the test supplies the result


def chat(task: Task) -> Any:
    return ChatOpenAI(
        base_url=task.url,
        api_key="none",  # pyright: ignore[reportArgumentType] - text is taken as a secret
        model=task.model,
        temperature=0,
        max_completion_tokens=task.max_tokens,
        max_retries=0,
    )


def message(task: Task) -> HumanMessage:
    return HumanMessage(content=openai_message(task)["content"])


def plain(task: Task) -> Outcome:
    return Outcome(text=chat(task).invoke([message(task)]).content)


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(chunk.content for chunk in chat(task).stream([message(task)])))


def tool(task: Task) -> Outcome:
    model = chat(task).bind_tools([weather])
    messages: list[Any] = [message(task)]
    asked = model.invoke(messages)
    messages += [asked, *(ToolMessage(task.forecast, tool_call_id=call["id"]) for call in asked.tool_calls)]
    return Outcome(text=model.invoke(messages).content, calls=calls_of(asked.tool_calls))


def streamed_tool(task: Task) -> Outcome:
    chunks = chat(task).bind_tools([weather]).stream([message(task)])
    return Outcome(calls=calls_of(sum(chunks, start=AIMessageChunk(content="")).tool_calls))


def schema(task: Task) -> Outcome:
    return Outcome(value=chat(task).with_structured_output(Shapes).invoke([message(task)]).model_dump())


def calls_of(calls: list[Any]) -> tuple[Call, ...]:
    return tuple(Call(name=call["name"], arguments=call["args"]) for call in calls)


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
}
