"""Audio inputs from OpenAI's client through Envoy, to a model with audio."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from glimpse.v1 import chat_pb2_grpc, content_pb2
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.e2e.media_host import HOST, MediaHost
from tests.e2e.stack import Stack, start_stack
from tests.media.audio import audio_file, noise
from tests.server.requests import request, user

WAV = audio_file(noise(1, 24_000), 44_100)
BASE64 = base64.b64encode(WAV).decode()


@pytest.fixture(scope="module")
def audio_stack(tmp_path_factory: pytest.TempPathFactory, media_host: MediaHost) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("audio_stack")
    running = start_stack(
        folder,
        f"--model={make_audio_checkpoint(folder / 'audio-model')}",
        "--dtype=float32",
        f"--allowed-media-networks={HOST}/32",
        f"--allowed-media-ports={media_host.server_port}",
        "--audio-fetch-timeout=3",
    )
    yield running
    assert running.stop() == 0


def ask(stack: Stack, part: Any) -> ChatCompletion:
    messages: Any = [{"role": "user", "content": [part, {"type": "text", "text": "What is this?"}]}]
    with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        return client.chat.completions.create(
            model="audio-model", messages=messages, temperature=0, max_completion_tokens=8
        )


def test_each_audio_source_gives_the_same_answer(audio_stack: Stack, media_host: MediaHost) -> None:
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{BASE64}"}},
        {"type": "audio_url", "audio_url": {"url": BASE64}},
        {"type": "audio_url", "audio_url": {"url": media_host.put("/noise.wav", WAV)}, "uuid": "noise"},
        {"type": "audio_url", "audio_url": None, "uuid": "noise"},
        {"type": "input_audio", "input_audio": None, "uuid": "noise"},
    ]
    audio = content_pb2.AudioPart(source=content_pb2.MediaSource(data=WAV))
    with grpc.insecure_channel(audio_stack.target) as channel:
        typed = chat_pb2_grpc.ChatServiceStub(channel).CreateChatCompletion(
            request(user(content_pb2.ContentPart(audio=audio), "What is this?"))
        )
    for part in parts:
        completion = ask(audio_stack, part)
        assert completion.choices[0].message.content == typed.choices[0].message.content
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        # 8,708 samples at 16 kHz are 55 frames and 28 positions; two positions are a token.
        assert completion.usage.prompt_tokens_details.audio_tokens == 14


def test_audio_has_its_own_fetch_timeout(audio_stack: Stack, media_host: MediaHost) -> None:
    with pytest.raises(BadRequestError, match="within 3 s") as caught:
        ask(audio_stack, {"type": "audio_url", "audio_url": {"url": media_host.url("/slow")}})
    assert caught.value.code == "media_fetch_timeout"
    assert caught.value.param == "messages[0].content[0].audio_url.url"
