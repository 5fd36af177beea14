"""Files over REST, through Envoy: OpenAI's client keeps them, and requests refer to them."""

import base64
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Literal

import grpc
import pytest
from openai import APIStatusError, BadRequestError, OpenAI
from openai.types import FileDeleted, FileObject
from openai.types.responses import ResponseInputFileParam
from pydantic import ByteSize

from glimpse.server.media_settings import MediaSettings
from glimpse.v1 import chat_pb2_grpc, content_pb2, media_pb2, media_pb2_grpc
from tests.e2e.images import encoded, tiles
from tests.e2e.requests import FILES, IGNORED_FIELDS, post
from tests.e2e.stack import Stack, start_echo_stack
from tests.hostile.forms import FORM, file, form, hostile_forms, text
from tests.media.pdfs import document, rectangle
from tests.media.videos import greys, video
from tests.server.requests import request, user

PNG = encoded(tiles(seed=5))
QUESTION = {"type": "text", "text": "What is in this image?"}
MAX_BYTES = 3 << 20


@pytest.fixture(scope="module")
def small_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Stores few files."""
    media = MediaSettings(
        media_egress="off", upload_cache_bytes=ByteSize(8 << 20), max_video_file_bytes=ByteSize(MAX_BYTES)
    )
    running = start_echo_stack(tmp_path_factory.mktemp("files"), media)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as client:
        yield client


def data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"


def answer(client: OpenAI, part: dict[str, Any], **extra: Any) -> tuple[str | None, int]:
    """Returns the text of an answer about a medium, and the tokens of its prompt."""
    content: Any = [part, QUESTION]
    completion = client.chat.completions.create(
        model="nano",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_completion_tokens=24,
        extra_body=extra,
    )
    assert completion.usage is not None
    return completion.choices[0].message.content, completion.usage.prompt_tokens


def test_a_file_is_created_listed_read_and_deleted(client: OpenAI) -> None:
    created = client.files.create(
        file=("café.png", PNG), purpose="vision", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    FileObject.model_validate_json(created.to_json(), strict=True)
    assert (created.filename, created.purpose, created.bytes, created.object) == (
        "café.png",
        "vision",
        len(PNG),
        "file",
    )
    assert abs(created.created_at - time.time()) < 100
    assert created.expires_at is not None
    assert 3500 < created.expires_at - created.created_at <= 3600
    assert client.files.retrieve(created.id) == created
    assert created in client.files.list(purpose="vision", order="asc").data
    content = client.files.content(created.id)
    assert content.read() == PNG
    headers = content.response.headers
    assert (headers["content-type"], headers["x-content-type-options"]) == ("application/octet-stream", "nosniff")
    deleted = client.files.delete(created.id)
    assert FileDeleted.model_validate_json(deleted.to_json(), strict=True).deleted
    for gone in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(APIStatusError) as caught:
            gone(created.id)
        assert (caught.value.status_code, caught.value.code, caught.value.param) == (404, "upload_not_found", "file_id")


def test_a_parameter_of_the_url_that_is_unknown_is_told_or_refused(client: OpenAI) -> None:
    listed = client.files.with_raw_response.list(extra_query={"foo": "1"})
    assert listed.headers[IGNORED_FIELDS] == "?foo"
    with pytest.raises(BadRequestError, match="'pupose': unknown parameter; did you mean 'purpose'"):
        client.files.list(extra_query={"pupose": "batch"})


def test_pages_of_a_list_have_each_file_once(client: OpenAI) -> None:
    created = [client.files.create(file=(f"{index}.jsonl", b"{}"), purpose="batch").id for index in range(5)]
    orders: list[tuple[Literal["asc", "desc"], list[str]]] = [("desc", created[::-1]), ("asc", created)]
    for order, expected in orders:
        page = client.files.list(purpose="batch", limit=2, order=order)
        assert [each.id for each in page.data] == expected[:2]
        assert page.has_more
        assert [each.id for each in page] == expected  # which asks for the pages that follow
    assert client.files.list(purpose="evals").data == []
    with pytest.raises(APIStatusError) as caught:
        client.files.list(after="file-x")
    assert (caught.value.status_code, caught.value.param) == (404, "after")
    with pytest.raises(APIStatusError) as refused:
        client.files.list(purpose="visoin")
    assert (refused.value.status_code, refused.value.param) == (400, "purpose")


@pytest.mark.parametrize("kind", ["image", "video"])
def test_a_file_gives_the_same_answer_as_the_medium_itself(client: OpenAI, kind: str) -> None:
    data = PNG if kind == "image" else video(greys(8))
    own = {"type": f"{kind}_url", f"{kind}_url": {"url": data_url(data)}}
    created = client.files.create(file=data, purpose="user_data").id
    sent = answer(client, own)
    assert sent[1] > 10
    for part in (
        {"type": f"{kind}_url", f"{kind}_url": {"file_id": created}},
        {"type": "file", "file": {"file_id": created}},
        {"type": "file", "file": {"file_data": data_url(data), "filename": "a"}},
    ):
        assert answer(client, part) == sent, part


def test_a_document_is_a_file_of_chat_and_of_responses(client: OpenAI) -> None:
    pdf = document([rectangle((1, 0, 0), 40, 20, 200, 120)])
    created = client.files.create(file=("a.pdf", pdf), purpose="user_data").id
    text, prompt_tokens = answer(client, {"type": "file", "file": {"file_id": created}})
    assert prompt_tokens > 30
    data = f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"
    sources: list[ResponseInputFileParam] = [
        {"type": "input_file", "file_id": created},
        {"type": "input_file", "file_data": data, "filename": "a.pdf"},
    ]
    for source in sources:
        response = client.responses.create(
            model="nano",
            input=[{"role": "user", "content": [source, {"type": "input_text", "text": QUESTION["text"]}]}],
            temperature=0,
            max_output_tokens=24,
        )
        assert response.usage is not None
        assert (response.output_text, response.usage.input_tokens) == (text, prompt_tokens)


def test_anthropic_s_messages_refer_to_the_same_files(client: OpenAI, stack: Stack) -> None:
    created = client.files.create(file=PNG, purpose="vision").id
    image = {"type": "image", "source": {"type": "file", "file_id": created}}
    body = {"max_tokens": 24, "temperature": 0, "messages": [{"role": "user", "content": [image, QUESTION]}]}
    text = stack.post("/v1/messages", body)["content"][0]["text"]
    assert text == answer(client, {"type": "image_url", "image_url": {"url": data_url(PNG)}})[0]


def test_grpc_has_the_same_files(client: OpenAI, stack: Stack) -> None:
    created = client.files.create(file=("a.png", PNG), purpose="vision")
    with grpc.insecure_channel(f"127.0.0.1:{stack.http_port}") as channel:
        media = media_pb2_grpc.MediaServiceStub(channel)
        listed = media.ListMedia(media_pb2.ListMediaRequest(purpose="vision", limit=1))
        (found,) = listed.media
        assert (found.upload_id, found.filename, found.size_bytes) == (created.id, "a.png", len(PNG))
        assert found.sha256 == sha256(PNG).digest()
        first, *rest = media.DownloadMedia(media_pb2.DownloadMediaRequest(upload_id=created.id))
        assert (first.media, b"".join(part.chunk for part in rest)) == (found, PNG)
        part = content_pb2.ContentPart(file={"source": {"upload_id": created.id}})
        wire = request(user("What is in this image?", part), max_completion_tokens=24)
        chat: Any = chat_pb2_grpc.ChatServiceStub(channel)
        own = content_pb2.ContentPart(image={"source": {"data": PNG}})
        inline = request(user("What is in this image?", own), max_completion_tokens=24)
        assert chat.CreateChatCompletion(wire).choices == chat.CreateChatCompletion(inline).choices


def test_a_salt_hides_files(client: OpenAI) -> None:
    created = client.files.create(file=PNG, purpose="vision", extra_body={"cache_salt": "mine"}).id
    salt = {"cache_salt": "mine"}
    assert created not in [each.id for each in client.files.list()]
    assert created in [each.id for each in client.files.list(extra_query=salt)]
    assert client.files.content(created, extra_query=salt).read() == PNG
    part = {"type": "file", "file": {"file_id": created}}
    assert answer(client, part, **salt)[1] > 10
    with pytest.raises(APIStatusError) as caught:
        answer(client, part)
    error = caught.value
    assert (error.status_code, error.code, error.param) == (
        400,
        "media_not_cached",
        "messages[0].content[0].file.file_id",
    )


def test_a_file_of_another_format_is_refused_where_a_medium_is_meant(client: OpenAI) -> None:
    created = client.files.create(file=("a.jsonl", b"{}"), purpose="batch").id
    for part, name in (
        ({"file_id": created}, "file_id"),
        ({"file_data": "data:application/json;base64,e30=", "filename": "a"}, "file_data"),
    ):
        with pytest.raises(APIStatusError) as caught:
            answer(client, {"type": "file", "file": part})
        assert caught.value.code == "unsupported_media_format"
        assert caught.value.param == f"messages[0].content[0].file.{name}"


@pytest.mark.parametrize("name", hostile_forms())
def test_hostile_forms_are_refused_by_reason(small_stack: Stack, name: str) -> None:
    hostile = hostile_forms()[name]
    refused = post(small_stack, FILES, hostile.body, hostile.content_type)
    assert 400 <= refused.status < 500, name
    assert refused.body["error"]["code"] == hostile.reason, refused.text
    assert post(small_stack, FILES, form(text("purpose", "vision"), file()), FORM).status == 200


def test_a_file_may_be_as_large_as_the_server_says(small_stack: Stack) -> None:
    with OpenAI(base_url=small_stack.openai_url, api_key="none", max_retries=0) as client:
        for num_bytes in (MAX_BYTES, MAX_BYTES // 2):
            data = bytes(range(256)) * (num_bytes // 256)
            created = client.files.create(file=data, purpose="user_data")
            assert created.bytes == num_bytes
            assert client.files.content(created.id).read() == data
        for num_bytes in (MAX_BYTES + 1, 4 * MAX_BYTES):
            with pytest.raises(APIStatusError) as caught:
                client.files.create(file=bytes(num_bytes), purpose="user_data")
            assert (caught.value.status_code, caught.value.code) == (413, "media_too_large")


def test_members_without_effect_are_told(small_stack: Stack) -> None:
    told = post(small_stack, FILES, form(text("comment", "a"), file()), FORM)
    assert (told.status, told.headers[IGNORED_FIELDS]) == (200, "comment")
