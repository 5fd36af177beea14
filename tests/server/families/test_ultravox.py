"""A server with Ultravox: audio over the typed API and over OpenAI's."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.v1 import chat_pb2_grpc, content_pb2
from tests.checkpoints.ultravox import make_ultravox_checkpoint, split_ultravox_checkpoint
from tests.e2e.stack import Stack
from tests.media.audio import audio_file, noise
from tests.server.families.second_answers import check_second_answers
from tests.server.requests import ask_in_json, request, user

ARCHITECTURES = ("UltravoxModel",)
Chat = chat_pb2_grpc.ChatServiceStub
WAV = audio_file(noise(1, 110_000), 16_000)
BASE64 = base64.b64encode(WAV).decode()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three of a checkpoint."""
    return tmp_path_factory.mktemp("checkpoints") / "parts"


@pytest.fixture(scope="module")
def checkpoint(parts: Path) -> Path:
    return split_ultravox_checkpoint(make_ultravox_checkpoint(parts.with_name("whole")), parts)


@pytest.fixture(scope="module")
def flags(parts: Path) -> Sequence[str]:
    return [f"--companion=org/{name}={parts / name}" for name in ("llama", "whisper")]


def audio_part() -> content_pb2.ContentPart:
    return content_pb2.ContentPart(audio=content_pb2.AudioPart(source=content_pb2.MediaSource(data=WAV)))


def test_typed_and_openai_apis_return_the_same_completion(channel: grpc.Channel) -> None:
    typed = Chat(channel).CreateChatCompletion(request(user(audio_part(), "What?")))
    # 688 frames: three chunks of 200, and 88.
    assert typed.usage.prompt_tokens_details.audio_tokens == 3 * 13 + 6
    parts: list[dict[str, Any]] = [
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}, "uuid": "call"},
        {"type": "input_audio", "input_audio": None, "uuid": "call"},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{BASE64}"}, "uuid": "other"},
    ]
    for part in parts:
        answer = ask_in_json(channel, part, {"type": "text", "text": "What?"})
        assert answer["choices"][0]["message"]["content"] == typed.choices[0].message.content
        assert answer["usage"]["prompt_tokens"] == typed.usage.prompt_tokens


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(stack: Stack, checkpoint: Path) -> None:
    check_second_answers(stack, checkpoint, *ARCHITECTURES, "audio")
