"""A server with Phi-3.5-vision: images over the typed and the OpenAI API, as the reference answers."""

from pathlib import Path
from typing import Any

import grpc

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.prompt import load_prompt_builder
from glimpse.v1 import chat_pb2, chat_pb2_grpc, model_pb2, model_pb2_grpc
from tests.checkpoints.phi3v import MAX_TILES, SIDE, make_phi3v_checkpoint
from tests.e2e.stack import Stack
from tests.media.images import encode, scene
from tests.oracles.phi3v import greedy_answer, prompt_ids, tiles_of
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, image_part, image_url, request, user

CHECKPOINT = make_phi3v_checkpoint
ARCHITECTURES = ("Phi3VForCausalLM",)
Chat = chat_pb2_grpc.ChatServiceStub
IMAGES = [scene(200, 61, 1), scene(21, 20, 2)]
TILES = [tiles_of(image, side=SIDE, most=MAX_TILES) for image in IMAGES]
FILES = [encode(image, "PNG") for image in IMAGES]


def test_typed_and_openai_apis_answer_images_like_the_reference(channel: grpc.Channel, checkpoint: Path) -> None:
    wire = request(user("the", image_part(FILES[0]), image_part(FILES[1]), "in"))
    wire.generation.ignore_eos = True
    typed, again = (Chat(channel).CreateChatCompletion(wire) for _ in range(2))
    builder = load_prompt_builder(checkpoint, load_model_config(checkpoint))
    content = [{"type": "text", "text": "the"}, {"type": "image"}, {"type": "image"}, {"type": "text", "text": "in"}]
    prompt = prompt_ids(checkpoint, [{"role": "user", "content": content}], TILES, side=SIDE)
    expected = greedy_answer(checkpoint, prompt, TILES, 8)
    # An answer continues a text, so it keeps a space before its first word.
    assert typed.choices[0].message.content.removeprefix(" ") == builder.tokenizer.decode(expected.token_ids)
    assert typed.usage.prompt_tokens == len(prompt)
    assert again.choices == typed.choices
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    parts = [{"type": "text", "text": "the"}, *map(image_url, FILES), {"type": "text", "text": "in"}]
    answer = ask_in_json(channel, *parts)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert typed.choices[0].message.content.startswith(answer["choices"][0]["message"]["content"])


def test_counts_the_tokens_of_images(channel: grpc.Channel) -> None:
    asked = user(image_part(FILES[0]), "What?")
    response = Chat(channel).CreateChatCompletion(request(asked))
    counted = Chat(channel).CountTokens(chat_pb2.CountTokensRequest(messages=[asked]))
    assert counted.prompt_tokens == response.usage.prompt_tokens
    details = response.usage.prompt_tokens_details
    assert details.image_tokens == counted.prompt_tokens_details.image_tokens
    # Two lines of three tiles, a separator, and two lines of the overview; each line ends with a separator.
    assert details.image_tokens == 2 * (6 + 1) + 1 + 2 * (2 + 1)


def test_a_model_of_images_says_so(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert list(listed.data[0].input_modalities) == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_IMAGE]


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "image")
