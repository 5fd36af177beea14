"""LlamaIndex's OpenAILike, for OpenAI-compatible servers."""

import base64
from typing import Any

from driver import WEATHER, WEATHER_DESCRIPTION, Call, Outcome, Shapes, Task
from llama_index.core.llms import ChatMessage, ChatResponse, ImageBlock, MessageRole, TextBlock
from llama_index.core.prompts import RichPromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def weather(city: str, days: int) -> str:
    raise NotImplementedError  # the test supplies the result


TOOLS: Any = [FunctionTool.from_defaults(weather, name=WEATHER, description=WEATHER_DESCRIPTION)]


def model(task: Task) -> OpenAILike:
    return OpenAILike(
        model=task.model,
        api_base=task.url,
        api_key="none",
        temperature=0,
        max_tokens=task.max_tokens,
        max_retries=0,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
    )


def message(task: Task) -> ChatMessage:
    text = TextBlock(text=task.question)
    if not task.image:
        return ChatMessage(role=MessageRole.USER, blocks=[text])
    image = ImageBlock(image=base64.b64decode(task.image.partition(",")[2]), image_mimetype="image/png")
    return ChatMessage(role=MessageRole.USER, blocks=[image, text])


def plain(task: Task) -> Outcome:
    return Outcome(text=model(task).chat([message(task)]).message.content or "")


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(piece.delta or "" for piece in model(task).stream_chat([message(task)])))


def tool(task: Task) -> Outcome:
    asking, history = model(task), [message(task)]
    asked = asking.chat_with_tools(TOOLS, chat_history=history, allow_parallel_tool_calls=True)
    selections = asking.get_tool_calls_from_response(asked)
    history.append(asked.message)
    for selection in selections:
        answers = {"tool_call_id": selection.tool_id}
        history.append(ChatMessage(role=MessageRole.TOOL, content=task.forecast, additional_kwargs=answers))
    answer = asking.chat_with_tools(TOOLS, chat_history=history)
    return Outcome(text=answer.message.content or "", calls=calls_of(asking, asked))


def streamed_tool(task: Task) -> Outcome:
    asking = model(task)
    *_, last = asking.stream_chat_with_tools(TOOLS, chat_history=[message(task)])
    return Outcome(calls=calls_of(asking, last))


def schema(task: Task) -> Outcome:
    return Outcome(value=model(task).structured_predict(Shapes, RichPromptTemplate(task.question)).model_dump())


def calls_of(asking: OpenAILike, response: ChatResponse) -> tuple[Call, ...]:
    selections = asking.get_tool_calls_from_response(response)
    return tuple(Call(name=selection.tool_name, arguments=selection.tool_kwargs) for selection in selections)


ASKS = {
    "plain": plain,
    "streamed": streamed,
    "image": plain,
    "tool": tool,
    "streamed_tool": streamed_tool,
    "schema": schema,
}
