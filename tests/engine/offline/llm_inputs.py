"""Inputs of `LLM` for the tests, and an engine for them."""

import base64
from pathlib import Path
from typing import Any

import PIL.Image

from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.offline.llm import LLM, RequestOutput
from tests.media.images import encode, noise_pixels

PIXELS = noise_pixels(60, 90, seed=0)


IMAGE = PIL.Image.fromarray(PIXELS)


OTHER_IMAGE = PIL.Image.fromarray(255 - PIXELS)


PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"


def png(image: PIL.Image.Image) -> bytes:
    return encode(image, "PNG")


def base64_png(image: PIL.Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


def load(path: Path, **options: Any) -> LLM:
    return LLM(
        path, dtype="float32", device="cpu", kv_cache_bytes=8 << 20, max_model_len=1024, num_threads=1, **options
    )


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def video_part(value: object, **options: Any) -> dict[str, Any]:
    return {"type": "video", "video": value, **options}


def image_pil(image: PIL.Image.Image) -> dict[str, Any]:
    return {"type": "image_pil", "image_pil": image}


def prompt_text(checkpoint: Path, output: RequestOutput) -> str:
    """Returns the prompt of an answer as a text, with its special tokens."""
    return load_tokenizer(checkpoint).decode(output.prompt_token_ids, skip_special=False)
