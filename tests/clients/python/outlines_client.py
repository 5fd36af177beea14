"""outlines: output types that the server enforces. It has no tools."""

import base64
import io
from typing import Any

import outlines
import PIL.Image
from driver import Outcome, Shapes, Task
from openai import OpenAI
from outlines.inputs import Image


def ask(task: Task, output_type: Any = None, *, stream: bool = False) -> Any:
    model = outlines.from_openai(OpenAI(base_url=task.url, api_key="none", max_retries=0), task.model)
    prompt: Any = task.question
    if task.image:
        image = PIL.Image.open(io.BytesIO(base64.b64decode(task.image.split(",")[1])))
        prompt = [task.question, Image(image)]
    call = model.stream if stream else model
    return call(prompt, output_type, temperature=0, max_tokens=task.max_tokens)


def plain(task: Task) -> Outcome:
    return Outcome(text=ask(task))


def streamed(task: Task) -> Outcome:
    return Outcome(pieces=tuple(ask(task, stream=True)))


def schema(task: Task) -> Outcome:
    return Outcome(value=Shapes.model_validate_json(ask(task, Shapes)).model_dump())


ASKS = {"plain": plain, "streamed": streamed, "image": plain, "schema": schema}
