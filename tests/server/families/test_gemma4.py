"""A server with Gemma 4: images over the typed API and over OpenAI's, and from the prefix cache."""

from pathlib import Path

import grpc

from glimpse.v1 import chat_pb2_grpc
from tests.checkpoints.gemma4 import make_gemma4_checkpoint
from tests.e2e.stack import Stack
from tests.server.families.second_answers import check_second_answers
from tests.server.families.test_gemma3 import png
from tests.server.requests import ask_in_json, image_part, image_url, request, user

CHECKPOINT = make_gemma4_checkpoint
ARCHITECTURES = ("Gemma4ForConditionalGeneration",)
Chat = chat_pb2_grpc.ChatServiceStub


def test_typed_and_openai_apis_return_the_same_completion_also_from_the_prefix_cache(channel: grpc.Channel) -> None:
    words = "the thing in an " * 8
    images = [png(60, 170), png(91, 33)]
    typed = Chat(channel).CreateChatCompletion(request(user(*map(image_part, images), words)))
    answer = ask_in_json(channel, *map(image_url, images), {"type": "text", "text": words})
    # 4 rows of 14 tokens and 13 of 5, each image with two marks.
    assert typed.usage.prompt_tokens_details.image_tokens == 4 * 14 + 13 * 5 + 4
    assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image")
