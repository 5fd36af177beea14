"""LangChain's ChatOpenAI: `bind_tools` and `with_structured_output`, over Chat Completions and over Responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driver import WEATHER, WEATHER_DESCRIPTION, Call, Outcome, Shapes, Task, openai_message
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool as make_tool
from langchain_openai import ChatOpenAI


@make_tool(WEATHER, description=WEATHER_DESCRIPTION)
def weather(city: str, days: int) -> str:
    raise NotImplementedError  # the test supplies the result


@dataclass(frozen=True, slots=True, kw_only=True)
class LangChain:
    """The client over one of both APIs."""

    use_responses_api: bool

    def plain(self, task: Task) -> Outcome:
        return Outcome(text=self._chat(task).invoke([message(task)]).text)

    def streamed(self, task: Task) -> Outcome:
        return Outcome(pieces=tuple(chunk.text for chunk in self._chat(task).stream([message(task)])))

    def tool(self, task: Task) -> Outcome:
        model = self._chat(task).bind_tools([weather])
        messages: list[Any] = [message(task)]
        asked = model.invoke(messages)
        messages += [asked, *(ToolMessage(task.forecast, tool_call_id=call["id"]) for call in asked.tool_calls)]
        return Outcome(text=model.invoke(messages).text, calls=calls_of(asked.tool_calls))

    def streamed_tool(self, task: Task) -> Outcome:
        chunks = self._chat(task).bind_tools([weather]).stream([message(task)])
        return Outcome(calls=calls_of(sum(chunks, start=AIMessageChunk(content="")).tool_calls))

    def schema(self, task: Task) -> Outcome:
        return Outcome(value=self._chat(task).with_structured_output(Shapes).invoke([message(task)]).model_dump())

    def _chat(self, task: Task) -> Any:
        return ChatOpenAI(
            base_url=task.url,
            api_key="none",  # pyright: ignore[reportArgumentType] - text is taken as a secret
            model=task.model,
            temperature=0,
            max_completion_tokens=task.max_tokens,
            max_retries=0,
            use_responses_api=self.use_responses_api,
        )


def message(task: Task) -> HumanMessage:
    return HumanMessage(content=openai_message(task)["content"])


def calls_of(calls: list[Any]) -> tuple[Call, ...]:
    return tuple(Call(name=call["name"], arguments=call["args"]) for call in calls)


def asks(*, use_responses_api: bool) -> Mapping[str, Any]:
    client = LangChain(use_responses_api=use_responses_api)
    return {
        "plain": client.plain,
        "streamed": client.streamed,
        "image": client.plain,
        "tool": client.tool,
        "streamed_tool": client.streamed_tool,
        "schema": client.schema,
    }


ASKS = asks(use_responses_api=False)
