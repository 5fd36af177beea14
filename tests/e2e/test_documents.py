"""What the documents that started the project do online, with media of this machine: each way works as written."""

import base64
import shlex
from collections.abc import Sequence
from typing import Any

import pytest
from openai import OpenAI

from glimpse.media.kind import MediaKind
from glimpse.server.cli import app, serve
from glimpse.server.settings import Settings
from tests.e2e.images import encoded, tiles
from tests.e2e.media_host import MediaHost
from tests.media.videos import greys, video

IMAGE = encoded(tiles())
FRAMES = [encoded(tiles(seed=seed)) for seed in (1, 2, 3, 4)]
VIDEO = video(greys(20, width=112, height=112))
SMALL = {"min_pixel": 4 * 28 * 28, "max_pixel": 16 * 28 * 28}


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def user(*content: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [*content, {"type": "text", "text": "What is shown?"}]}]


def image(url: Any, **members: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **members}}


def a_video(url: Any, **members: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **members}}


def ask(client: OpenAI, messages: Sequence[Any], **members: Any) -> str:
    """Returns the streamed answer, which the unary one equals."""
    options: dict[str, Any] = {
        "model": "nano",
        "messages": messages,
        "temperature": 0,
        "max_completion_tokens": 8,
    } | members
    whole = client.chat.completions.create(**options)
    chunks = client.chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    return text


@pytest.mark.parametrize("form", ["url", "data URL", "base64"])
def test_an_image_with_pixel_bounds(client: OpenAI, media_host: MediaHost, form: str) -> None:
    url = media_host.put("/documents.png", IMAGE)
    source = {"url": url, "data URL": data_url("image/png", IMAGE), "base64": base64.b64encode(IMAGE).decode()}[form]
    system = {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
    assert ask(client, [system, *user(image(source, **SMALL))], frequency_penalty=0.1, top_p=0.9)


@pytest.mark.parametrize("form", ["url", "data URL", "frames' URLs", "frames' data", "vLLM's frames"])
def test_a_video(client: OpenAI, media_host: MediaHost, form: str) -> None:
    sources: dict[str, Any] = {
        "url": media_host.put("/documents.mp4", VIDEO),
        "data URL": data_url("video/mp4", VIDEO),
        "frames' URLs": [media_host.put(f"/{index}.png", frame) for index, frame in enumerate(FRAMES)],
        "frames' data": [data_url("image/png", frame) for frame in FRAMES],
        "vLLM's frames": "data:video/jpeg;base64," + ",".join(base64.b64encode(frame).decode() for frame in FRAMES),
    }
    assert ask(client, user(a_video(sources[form], fps=1, **SMALL)))


def test_options_of_media_for_a_whole_request(client: OpenAI) -> None:
    body = {
        "media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}, "video": {"num_frames": 4}},
        "mm_processor_kwargs": {"min_pixels": 3136, "max_pixels": 16 * 28 * 28},
    }
    messages = user(image(data_url("image/png", IMAGE)), a_video(data_url("video/mp4", VIDEO)))
    assert ask(client, messages, extra_body=body)


def test_a_cached_image_by_its_uuid(client: OpenAI) -> None:
    sent = image(data_url("image/png", IMAGE)) | {"uuid": "image-0001"}
    cached = {"type": "image_url", "image_url": None, "uuid": "image-0001"}
    assert ask(client, user(sent)) == ask(client, user(cached))


def test_sampling_parameters_of_vllm(client: OpenAI) -> None:
    body = {"top_k": 20, "repetition_penalty": 1.05, "min_p": 0.0, "seed": 1, "skip_special_tokens": True}
    assert ask(client, user(image(data_url("image/png", IMAGE), detail="low")), extra_body=body)


LINES = {
    "microsoft/Phi-3.5-vision-instruct": """--runner generate
        --trust-remote-code --max-model-len 4096 --limit-mm-per-prompt '{"image":2}'""",
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": "--runner generate --max-model-len 8192",
    "llava-hf/llava-1.5-7b-hf": """--media-io-kwargs '{"image": {"rgba_background_color": [128, 128, 128]}}'""",
    "fixie-ai/ultravox-v0_5-llama-3_2-1b": "",
}
FIRST_PAGE = """--model llava-hf/llava-1.5-7b-hf --image-input-type pixel_values --image-token-id 32000
    --image-input-shape 1,3,336,336 --image-feature-size 576 --chat-template template_llava.jinja"""


@pytest.mark.parametrize("command", ["serve", "up"])
def test_command_lines_of_vllm_s_pages(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Settings] = []
    monkeypatch.setattr(serve, "_run", lambda settings, *_: found.append(settings))
    for line in (*(f"{model} {flags}" for model, flags in LINES.items()), FIRST_PAGE):
        arguments = app.read_arguments([command, *shlex.split(line)])
        app.app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    *pages, first = found
    assert [settings.engine.model for settings in pages] == [*LINES]
    assert (pages[0].engine.options.max_model_len, pages[0].media.max_media[MediaKind.IMAGE]) == (4096, 2)
    assert pages[1].engine.options.max_model_len == 8192
    assert pages[2].media.media_io_kwargs.image.rgba_background_color == (128, 128, 128)
    assert (first.engine.model, str(first.engine.chat_template)) == (
        "llava-hf/llava-1.5-7b-hf",
        "template_llava.jinja",
    )
