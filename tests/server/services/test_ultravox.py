"""A server with Ultravox: audio over the typed API and over OpenAI's."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from glimpse.openai.v1 import openai_pb2_grpc
from glimpse.v1 import chat_pb2_grpc, content_pb2, model_pb2, model_pb2_grpc
from tests.media.audio import audio_file, noise
from tests.server.requests import request, user
from tests.server.serving import served
from tests.ultravox_checkpoints import make_ultravox_checkpoint, split_ultravox_checkpoint

Chat = chat_pb2_grpc.ChatServiceStub
WAV = audio_file(noise(1, 110_000), 16_000)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server, whose checkpoint is in three folders."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoint = split_ultravox_checkpoint(make_ultravox_checkpoint(folder / "whole"), folder / "parts")
    flags = [f"--companion=org/{name}={folder / 'parts' / name}" for name in ("llama", "whisper")]
    with served(checkpoint, tmp_path_factory.mktemp("serving"), *flags) as server, server.channel() as opened:
        yield opened


def audio_part() -> content_pb2.ContentPart:
    return content_pb2.ContentPart(audio=content_pb2.AudioPart(source=content_pb2.MediaSource(data=WAV)))


def test_typed_and_openai_apis_return_the_same_completion(channel: grpc.Channel) -> None:
    typed = Chat(channel).CreateChatCompletion(request(user(audio_part(), "What?")))
    content = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
        {"type": "text", "text": "What?"},
    ]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_completion_tokens": 8}
    openai: Any = openai_pb2_grpc.OpenAIServiceStub(channel)
    bodies = iter([HttpBody(content_type="application/json", data=json.dumps(body).encode())])
    answer = json.loads(b"".join(piece.data for piece in openai.CreateChatCompletion(bodies)))
    # 688 frames: three chunks of 200, and 88.
    assert typed.usage.prompt_tokens_details.audio_tokens == 3 * 13 + 6
    assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
    assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens


def test_an_audio_input_in_the_prefix_cache_is_found_again(channel: grpc.Channel) -> None:
    wire = request(user(content_pb2.ContentPart(text="the an " * 20), audio_part(), "in"))
    first, second = (Chat(channel).CreateChatCompletion(wire) for _ in range(2))
    assert second.choices == first.choices
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_model_description_lists_audio(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert list(listed.data[0].input_modalities) == [model_pb2.MODALITY_TEXT, model_pb2.MODALITY_AUDIO]
