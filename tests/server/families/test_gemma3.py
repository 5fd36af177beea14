"""A server with Gemma 3: images over the typed API and over OpenAI's, and from the prefix cache."""

from pathlib import Path

import grpc
import PIL.Image

from glimpse.v1 import chat_pb2_grpc
from tests.checkpoints.gemma3 import NUM_IMAGE_TOKENS, make_gemma3_checkpoint
from tests.e2e.stack import Stack
from tests.media.images import encode, noise_pixels
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user

CHECKPOINT = make_gemma3_checkpoint
ARCHITECTURES = ("Gemma3ForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub


def png(height: int, width: int) -> bytes:
    return encode(PIL.Image.fromarray(noise_pixels(height, width, seed=height)), "PNG")


def check_both_apis(channel: grpc.Channel, *, num_image_tokens: int) -> None:
    words = "the thing in an " * 8
    images = [png(60, 170), png(91, 33)]
    typed = Chat(channel).CreateChatCompletion(request(user(*map(image_part, images), words)))
    answer = ask_in_json(channel, *map(image_url, images), {"type": "text", "text": words})
    assert typed.usage.prompt_tokens_details.image_tokens == num_image_tokens
    assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_typed_and_openai_apis_return_the_same_completion_also_from_the_prefix_cache(channel: grpc.Channel) -> None:
    check_both_apis(channel, num_image_tokens=2 * (NUM_IMAGE_TOKENS + 2))


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image")
