"""DSPy: its language model, and signatures with a structured output, a streamed field and calls.

Of the prefix `openai/` it believes that only known models enforce schemas, and asks for any JSON. Unless LiteLLM knows
that a model calls tools, it describes them in a prompt of its own.
"""

from typing import Any

import dspy
import litellm
from driver import WEATHER, WEATHER_DESCRIPTION, WEATHER_PARAMETERS, Call, Outcome, Shapes, Task, openai_message


class Seen(dspy.Signature):
    """Describe the image."""

    question: str = dspy.InputField()
    shapes: Shapes = dspy.OutputField()


class Called(dspy.Signature):
    """Call the tools that answer the question."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


def model(task: Task) -> Any:
    litellm.register_model({f"lm_studio/{task.model}": {"supports_function_calling": True}})
    return dspy.LM(
        f"lm_studio/{task.model}",
        api_base=task.url,
        api_key="none",
        temperature=0,
        max_tokens=task.max_tokens,
        cache=False,
        num_retries=0,
        _skip_mcp_handler=True,  # as in litellm_client.py
    )


def plain(task: Task) -> Outcome:
    return Outcome(text=model(task)(messages=[openai_message(task)])[0])


def schema(task: Task) -> Outcome:
    with dspy.context(lm=model(task), adapter=dspy.JSONAdapter()):
        return Outcome(value=dspy.Predict(Seen)(question=task.question).shapes.model_dump())


def streamed(task: Task) -> Outcome:
    answer = dspy.streaming.StreamListener(signature_field_name="answer")
    ask: Any = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[answer], async_streaming=False)
    with dspy.context(lm=model(task), adapter=dspy.ChatAdapter()):
        received = list(ask(question=task.question))
    pieces = (each.chunk for each in received if isinstance(each, dspy.streaming.StreamResponse))
    return Outcome(text=received[-1].answer, pieces=tuple(pieces))


def tool(task: Task) -> Outcome:
    weather = dspy.Tool(str, name=WEATHER, desc=WEATHER_DESCRIPTION, args=WEATHER_PARAMETERS["properties"])
    with dspy.context(lm=model(task), adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        calls = dspy.Predict(Called)(question=task.question, tools=[weather]).calls.tool_calls
    return Outcome(calls=tuple(Call(name=call.name, arguments=call.args) for call in calls))


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema, "tool": tool}
