"""DSPy: its language model, and a signature with a structured output.

Of the prefix `openai/` it believes that only known models enforce schemas, and asks for any JSON.
"""

from typing import Any

import dspy
from driver import Outcome, Shapes, Task, openai_message


class Seen(dspy.Signature):
    """Describe the image."""

    question: str = dspy.InputField()
    shapes: Shapes = dspy.OutputField()


def model(task: Task) -> Any:
    return dspy.LM(
        f"lm_studio/{task.model}",
        api_base=task.url,
        api_key="none",
        temperature=0,
        max_tokens=task.max_tokens,
        cache=False,
        num_retries=0,
    )


def plain(task: Task) -> Outcome:
    return Outcome(text=model(task)(messages=[openai_message(task)])[0])


def schema(task: Task) -> Outcome:
    with dspy.context(lm=model(task), adapter=dspy.JSONAdapter()):
        return Outcome(value=dspy.Predict(Seen)(question=task.question).shapes.model_dump())


ASKS = {"plain": plain, "image": plain, "schema": schema}
