"""What the clients' methods return, from a real server."""

import base64
import io
import json
import traceback
from pathlib import Path
from typing import Any

import grpc
import PIL.Image
import pytest

from glimpse.client import Audio, GlimpseError, Image, Message, Video
from tests.e2e.media_host import MediaHost
from tests.media.videos import greys, video
from tests.server.requests import png

GREEDY = {"temperature": 0.0, "max_completion_tokens": 8}
PNG = png()


def pillow(data: bytes) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(data))


async def test_answers_a_question(client: Any) -> None:
    completion = await client.chat("Hello", **GREEDY)
    assert completion.text
    assert completion.finish_reason in ("stop", "length")
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert not completion.tool_calls


async def test_streams_the_same_answer(client: Any) -> None:
    completion = await client.chat("Hello", **GREEDY)
    *chunks, last = [chunk async for chunk in client.stream("Hello", **GREEDY)]
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [completion.finish_reason]
    assert (last.text, last.finish_reason, last.usage) == ("", None, completion.usage)
    assert not any(chunk.usage for chunk in chunks)


async def test_continues_a_conversation(client: Any) -> None:
    messages = [
        Message("system", "Be brief."),
        Message("user", "Hello"),
        Message("assistant", "Hi"),
        Message("user", "?"),
    ]
    longer = await client.count_tokens(messages)
    shorter = await client.count_tokens(messages[:2])
    assert longer.prompt_tokens > shorter.prompt_tokens
    assert (await client.chat(messages, **GREEDY)).usage.prompt_tokens == longer.prompt_tokens


@pytest.mark.parametrize("form", ["bytes", "path", "string", "pillow", "url", "upload"])
async def test_sends_an_image_in_each_form(client: Any, form: str, tmp_path: Path, media_host: MediaHost) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(PNG)
    source = {
        "bytes": PNG,
        "path": path,
        "string": str(path),
        "pillow": pillow(PNG),
        "url": media_host.put("/client.png", PNG),
        "upload": await client.upload(path),
    }[form]
    expected = await client.chat([Image(PNG), "What is it?"], **GREEDY)
    completion = await client.chat([Image(source), "What is it?"], **GREEDY)
    assert completion.text == expected.text
    assert completion.usage.prompt_tokens_details.image_tokens > 0


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "CMYK", "F"])
async def test_sends_pillow_images_of_other_modes(client: Any, mode: str) -> None:
    image = PIL.Image.new("RGB", (64, 48), (200, 30, 40)).convert("L" if mode == "F" else "RGB").convert(mode)
    assert (await client.count_tokens([Image(image)])).prompt_tokens_details.image_tokens > 0


async def test_sends_image_options(client: Any) -> None:
    small = await client.count_tokens([Image(png(448, 448), max_pixels=56 * 56)])
    large = await client.count_tokens([Image(png(448, 448), detail="high")])
    assert small.prompt_tokens_details.image_tokens < large.prompt_tokens_details.image_tokens


async def test_sends_a_video_as_file_and_as_frames(client: Any) -> None:
    file = await client.count_tokens([Video(video(greys(8)), num_frames=4, max_pixels=56 * 56), "What happens?"])
    frames = [PNG, pillow(png(colour=(1, 2, 3)))]
    images = await client.count_tokens([Video(frames, fps=2), "What happens?"])
    assert file.videos[0].num_frames == 4
    assert images.videos[0].num_frames == 2


async def test_sends_an_image_once_by_its_uuid(client: Any, kind: str) -> None:
    question = "What is it?"
    expected = await client.chat([Image(PNG, uuid=f"client-{kind}"), question], **GREEDY)
    assert (await client.chat([Image(uuid=f"client-{kind}"), question], **GREEDY)).text == expected.text


async def test_uploads_belong_to_a_cache_salt(client: Any) -> None:
    upload = await client.upload(PNG, cache_salt="mine", ttl_seconds=60)
    assert upload.size_bytes == len(PNG)
    assert (await client.count_tokens([Image(upload)], cache_salt="mine")).prompt_tokens
    with pytest.raises(GlimpseError) as caught:
        await client.count_tokens([Image(upload)], cache_salt="other")
    assert caught.value.reason == "media_not_cached"


async def test_uploads_more_than_one_chunk(client: Any) -> None:
    noise = PIL.Image.effect_noise((1500, 1500), 100)
    upload = await client.upload(noise)
    assert upload.size_bytes > 1 << 20
    assert (await client.count_tokens([Image(upload)])).prompt_tokens_details.image_tokens > 0


async def test_lists_the_models(client: Any) -> None:
    (model,) = await client.models()
    assert (model.id, model.max_model_len > 0) == ("tiny", True)


async def test_answer_matches_a_json_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    completion = await client.chat("Hello", temperature=0, max_completion_tokens=64, response_format=schema)
    assert json.loads(completion.text) == {"a": 1}


async def test_answer_is_a_json_object(client: Any) -> None:
    form = {"type": "json_object"}
    completion = await client.chat("Hello", temperature=0, max_tokens=8, response_format=form)
    assert completion.text.startswith("{")


async def test_errors_carry_status_reason_field_and_request_id(client: Any) -> None:
    with pytest.raises(GlimpseError) as caught:
        await client.chat([Image(b"not an image"), "What is it?"], request_id="bad-image")
    error = caught.value
    assert error.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.reason, error.field) == ("unsupported_media_format", "messages[0].content[0].image.source")
    assert error.request_id == "bad-image"
    assert "'messages[0].content[0].image.source'" in str(error)


async def test_stream_raises_the_same_errors(client: Any) -> None:
    with pytest.raises(GlimpseError) as caught:
        _ = [chunk async for chunk in client.stream("Hello", temperature=9)]
    assert caught.value.field == "generation.temperature"


async def test_a_refused_call_is_one_exception(client: Any) -> None:
    with pytest.raises(GlimpseError) as call:
        await client.chat("Hello", temperature=9)
    with pytest.raises(GlimpseError) as stream:
        await anext(client.stream("Hello", temperature=9))
    for caught in (call, stream):
        report = "".join(traceback.format_exception(caught.value))
        assert report.count("Traceback") == 1
        assert "grpc." not in report


async def test_audio_is_refused_by_a_model_without_audio(client: Any) -> None:
    with pytest.raises(GlimpseError) as caught:
        await client.chat([Audio(b"RIFF"), "What is it?"])
    assert caught.value.field == "messages[0].content[0].audio.source"


async def test_unreadable_file_is_an_os_error(client: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await client.chat([Image(tmp_path / "missing.png")])
    with pytest.raises(FileNotFoundError):
        await client.upload(tmp_path / "missing.png")


async def test_answers_openai_s_dicts(client: Any) -> None:
    image = "data:image/png;base64," + base64.b64encode(PNG).decode()
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is it?"}]
    expected = await client.chat([Image(PNG), "What is it?"], **GREEDY)
    answer = await client.chat([{"role": "user", "content": parts}], temperature=0, max_tokens=8)
    assert (answer.text, answer.usage.prompt_tokens) == (expected.text, expected.usage.prompt_tokens)


async def test_completes_and_tokenizes_texts(client: Any) -> None:
    tokens = (await client.tokenize("the sea")).tokens
    assert await client.detokenize(tokens) == "the sea"
    completion = await client.complete("the sea", **GREEDY)
    assert completion.usage.prompt_tokens == len(tokens)
    several = await client.complete([list(tokens), "the sea"], **GREEDY)
    assert several.texts == [completion.text] * 2
    assert (await client.tokenize([Message("user", "the sea")])).count > len(tokens)


async def test_embeds_texts_and_images(client: Any) -> None:
    embeddings = await client.embed(["the sea", [Image(PNG), "the sea"], [5, 6]], dimensions=16)
    assert [len(vector) for vector in embeddings.vectors] == [16, 16, 16]
    assert all(sum(value * value for value in vector) == pytest.approx(1, abs=1e-5) for vector in embeddings.vectors)
    assert embeddings.usage.prompt_tokens_details.image_tokens > 0
    (alone,) = (await client.embed(["the sea"], dimensions=16)).vectors
    assert list(embeddings.vectors[0]) == pytest.approx(list(alone), abs=1e-5)
    with pytest.raises(GlimpseError, match="'dimensions': expected at most 64") as failure:
        await client.embed(["a"], dimensions=65)
    assert failure.value.field == "dimensions"


async def test_uploads_are_listed_read_and_deleted(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(PNG)
    salt = {"cache_salt": str(tmp_path)}
    named = await client.upload(path, purpose="vision", **salt)
    noise = await client.upload(bytes(3 << 20), filename="noise", **salt)
    assert (named.filename, noise.filename, noise.purpose) == ("image.png", "noise", "user_data")
    assert await client.uploads(**salt) == [noise, named]
    assert await client.uploads(purpose="vision", limit=1, order="asc", **salt) == [named]
    assert await client.download(noise, **salt) == bytes(3 << 20)
    await client.delete_upload(noise, **salt)
    assert await client.uploads(**salt) == [named]
    with pytest.raises(GlimpseError) as caught:
        await client.download(noise, **salt)
    assert caught.value.reason == "upload_not_found"
