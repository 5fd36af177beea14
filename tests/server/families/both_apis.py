"""A question about images, over the typed API and over OpenAI's."""

from typing import Any

import grpc
import PIL.Image

from glimpse.v1 import chat_pb2_grpc
from tests.media.images import encode, noise_pixels
from tests.server.requests import ask_in_json, image_part, image_url, request, user


def noise_png(height: int, width: int) -> bytes:
    return encode(PIL.Image.fromarray(noise_pixels(height, width, seed=height)), "PNG")


def check_both_apis(channel: grpc.Channel, words: str) -> Any:
    """Asks about a wide and a tall image, and returns the prompt's tokens as OpenAI's API details them."""
    images = [noise_png(60, 170), noise_png(91, 33)]
    wire = request(user(*map(image_part, images), words))
    typed = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(wire)
    answer = ask_in_json(channel, *map(image_url, images), {"type": "text", "text": words})
    assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens
    details = answer["usage"]["prompt_tokens_details"]
    assert details["image_tokens"] == typed.usage.prompt_tokens_details.image_tokens
    return details
