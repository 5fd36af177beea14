"""A server with Gemma 3: images over the typed API and over OpenAI's, and from the prefix cache."""

from pathlib import Path

import grpc

from tests.checkpoints.gemma3 import NUM_IMAGE_TOKENS, make_gemma3_checkpoint
from tests.e2e.stack import Stack
from tests.server.families.both_apis import check_both_apis
from tests.server.families.second_answers import check_second_answers

CHECKPOINT = make_gemma3_checkpoint
ARCHITECTURES = ("Gemma3ForConditionalGeneration",)


def test_typed_and_openai_apis_return_the_same_completion_also_from_the_prefix_cache(channel: grpc.Channel) -> None:
    details = check_both_apis(channel, "the thing in an " * 8)
    assert details["image_tokens"] == 2 * (NUM_IMAGE_TOKENS + 2)
    assert details["cached_tokens"] > 0


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image")
