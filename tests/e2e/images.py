"""Images for the tests, how they are encoded, and questions about them."""

import base64
import io
import random
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletion
from PIL import Image


def tiles(*, seed: float = 0, width: int = 224, height: int = 224) -> Image.Image:
    """Coloured tiles, different for each seed."""
    return Image.frombytes("RGB", (8, 8), random.Random(seed).randbytes(192)).resize(
        (width, height), Image.Resampling.NEAREST
    )


def encoded(image: Image.Image, file_format: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, file_format)
    return file.getvalue()


def data_url(image: Image.Image, file_format: str = "PNG") -> str:
    return f"data:image/{file_format.lower()};base64," + base64.b64encode(encoded(image, file_format)).decode()


def ask_about(client: OpenAI, *parts: Any, question: str = "What is this?", **extra: Any) -> ChatCompletion:
    """Asks about media; `extra` has further members of the request."""
    content: Any = [*parts, {"type": "text", "text": question}]
    return client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_completion_tokens=16,
        extra_body=extra,
    )
