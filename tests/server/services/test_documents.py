"""Tests for documents over the typed API: pages as images, their tokens, texts, caching, uploads and refusals."""

import base64
from typing import Any

import grpc
import pytest

from glimpse.anthropic.v1 import anthropic_pb2_grpc
from glimpse.client.requests import upload_requests
from glimpse.media.containers.pdf import open_pdf
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, media_pb2_grpc, model_pb2, model_pb2_grpc
from tests.media.heif import heic
from tests.media.images import encode, scene
from tests.media.pdfs import document, rectangle, text
from tests.server.requests import ask_in_json, image_part, png, post_json, request, user
from tests.server.services.error_details import details

Chat = chat_pb2_grpc.ChatServiceStub
COLOURS = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
THREE = document([rectangle(colour, 40, 20, 200, 120) + text(f"page {n}") for n, colour in enumerate(COLOURS)])
SMALL = {"min_pixels": 784, "max_pixels": 56 * 56}
PART = "messages[0].content[0]"


def document_part(data: bytes = THREE, **members: Any) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(document={"source": {"data": data}, **(SMALL | members)})


def drawn(*numbers: int) -> list[content_pb2.ContentPart]:
    """Returns pages as images that the client draws itself."""
    with open_pdf(THREE) as pdf:
        images = [pdf.render(number, dpi=None, max_pixels=64_000_000) for number in numbers]
    return [image_part(encode(image, "PNG"), **SMALL) for image in images]


def ask(chat: Chat, *parts: str | content_pb2.ContentPart) -> chat_pb2.CreateChatCompletionResponse:
    wire = request(user(*parts))
    wire.generation.logprobs = True
    return chat.CreateChatCompletion(wire)


def refused(chat: Chat, *parts: content_pb2.ContentPart) -> tuple[str, str, str]:
    """Returns the field, the message and the reason of a refusal."""
    with pytest.raises(grpc.RpcError) as caught:
        chat.CreateChatCompletion(request(user(*parts)))
    info, bad = details(caught.value)
    (violation,) = bad.field_violations
    return violation.field, violation.description, info.reason.lower()


def test_a_document_is_the_images_of_its_pages(chat: Chat) -> None:
    as_document = ask(chat, "Which?", document_part())
    as_images = ask(chat, "Which?", *drawn(1, 2, 3))
    assert as_document.choices == as_images.choices
    assert as_document.usage.prompt_tokens == as_images.usage.prompt_tokens
    details_of = as_document.usage.prompt_tokens_details
    assert details_of.image_tokens == as_images.usage.prompt_tokens_details.image_tokens > 0
    assert as_document.usage.prompt_tokens_details.cached_tokens < as_images.usage.prompt_tokens_details.cached_tokens


def test_a_range_of_pages_may_stand_between_other_parts(chat: Chat) -> None:
    whole = ask(chat, image_part(png(), **SMALL), document_part(first_page=2, last_page=3), "Which?")
    assert whole.choices == ask(chat, image_part(png(), **SMALL), *drawn(2, 3), "Which?").choices


def test_texts_of_pages_follow_their_images(chat: Chat) -> None:
    content = content_pb2.PAGE_CONTENT_IMAGE_AND_TEXT
    both = ask(chat, document_part(last_page=2, page_content=content), "Which?")
    first, second = drawn(1, 2)
    assert both.choices == ask(chat, first, "page 0\n\n", second, "page 1\n\n", "Which?").choices


def test_text_alone_is_text(chat: Chat) -> None:
    alone = ask(chat, document_part(page_content=content_pb2.PAGE_CONTENT_TEXT), "Which?")
    assert alone.choices == ask(chat, "page 0\n\npage 1\n\npage 2", "Which?").choices
    assert alone.usage.prompt_tokens_details.image_tokens == 0


def test_usage_lists_each_page(chat: Chat) -> None:
    first, again = (ask(chat, document_part(), "Which pages?").usage.media_usage for _ in range(2))
    assert [medium.modality for medium in first.media] == [model_pb2.MODALITY_IMAGE] * 3
    assert len({(medium.width, medium.height) for medium in first.media}) == 1
    assert (again.decoded_media, again.decode_cache_hits, again.encoder_cache_hits) == (0, 3, 3)


def test_count_tokens_agrees_with_usage(chat: Chat) -> None:
    wire = request(user(document_part(page_content=content_pb2.PAGE_CONTENT_IMAGE_AND_TEXT), "Which?"))
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=wire.messages))
    assert counted.prompt_tokens == chat.CreateChatCompletion(wire).usage.prompt_tokens
    assert counted.prompt_tokens_details.image_tokens > 0


def test_an_upload_and_a_uuid_stand_for_a_document(chat: Chat, channel: grpc.Channel) -> None:
    upload = media_pb2_grpc.MediaServiceStub(channel).UploadMedia(upload_requests(THREE, {})).media.upload_id
    sent = content_pb2.ContentPart(document={"source": {"upload_id": upload}, **SMALL}, uuid="three")
    expected = ask(chat, sent, "Which?").choices
    named = content_pb2.ContentPart(document={**SMALL}, uuid="three")
    assert ask(chat, named, "Which?").choices == expected == ask(chat, document_part(), "Which?").choices


@pytest.mark.parametrize(
    ("members", "field", "message", "reason"),
    [
        ({"first_page": 4}, "document.first_page", "expected a page of the document, got 4", "invalid_media_parameter"),
        ({"first_page": 3, "last_page": 2}, "document.last_page", "expected at least first_page, 3", "invalid_value"),
        ({"dpi": 1201}, "document.dpi", "1200", "invalid_value"),
        ({"min_pixels": 9999}, "document.min_pixels", "max_pixels", "invalid_value"),
        ({"data": b"%PDF-1.7"}, "document.source", "the document is corrupt or truncated", "invalid_media"),
        ({"data": png()}, "document.source", "expected a PDF document, got a PNG image", "unsupported_media_format"),
        ({"data": b""}, "document.source.data", "expected the bytes of a file", "missing_value"),
        (
            {"data": document([""] * 17)},
            "document.source",
            "expected at most 16 images (the server's --limit-mm-per-prompt), got 17 with the pages of this document; "
            "choose pages with first_page and last_page",
            "too_many_images",
        ),
    ],
)
def test_refusals_name_the_field_and_the_bound(
    chat: Chat, members: dict[str, Any], field: str, message: str, reason: str
) -> None:
    got = refused(chat, document_part(**members))
    assert (got[0], got[2]) == (f"{PART}.{field}", reason)
    assert message in got[1]


def test_a_document_sent_as_an_image_is_told_what_it_is(chat: Chat) -> None:
    field, message, reason = refused(chat, image_part(THREE))
    assert (field, reason) == (f"{PART}.image.source", "unsupported_media_format")
    assert message.endswith("got a PDF document; send it as a document")


def test_the_model_description_has_the_limit(channel: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert listed.data[0].capabilities.max_documents == 16


BASE64 = base64.b64encode(THREE).decode()
URL = f"data:application/pdf;base64,{BASE64}"


def ask_openai(channel: grpc.Channel, *parts: Any) -> str:
    return ask_in_json(channel, *parts)["choices"][0]["message"]["content"]


def ask_anthropic(channel: grpc.Channel, *messages: Any) -> str:
    document = {"messages": list(messages), "max_tokens": 8, "temperature": 0}
    (block,) = post_json(anthropic_pb2_grpc.AnthropicServiceStub(channel).CreateMessage, document)["content"]
    return block["text"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "three.pdf", "file_data": URL}},
        {"type": "file", "file": {"filename": "three.pdf", "file_data": BASE64}},
        {"type": "document", "document": {"url": URL}},
        {"type": "document", "document": URL},
    ],
)
def test_openai_s_parts_are_documents(channel: grpc.Channel, part: Any) -> None:
    whole = request(user(content_pb2.ContentPart(document={"source": {"data": THREE}}), "Which?"))
    expected = Chat(channel).CreateChatCompletion(whole).choices[0].message.content
    assert ask_openai(channel, part, {"type": "text", "text": "Which?"}) == expected


def test_an_upload_is_a_document_in_both_dialects(channel: grpc.Channel) -> None:
    upload = media_pb2_grpc.MediaServiceStub(channel).UploadMedia(upload_requests(THREE, {})).media.upload_id
    question = {"type": "text", "text": "Which?"}
    expected = ask_openai(channel, {"type": "document", "document": URL}, question)
    assert ask_openai(channel, {"type": "file", "file": {"file_id": upload}}, question) == expected
    block = {"type": "document", "source": {"type": "file", "file_id": upload}}
    assert ask_anthropic(channel, {"role": "user", "content": [block, question]}) == expected


def test_anthropic_s_documents_have_pages_a_title_and_a_context(channel: grpc.Channel) -> None:
    question = {"type": "text", "text": "Which?"}
    plain: dict[str, Any] = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": BASE64},
    }
    expected = ask_openai(channel, {"type": "document", "document": URL}, question)
    assert ask_anthropic(channel, {"role": "user", "content": [plain, question]}) == expected
    url = {"type": "document", "source": {"type": "url", "url": URL}, "citations": {"enabled": False}}
    assert ask_anthropic(channel, {"role": "user", "content": [url, question]}) == expected
    titled = ask_anthropic(channel, {"role": "user", "content": [plain | {"title": "T", "context": "C"}, question]})
    head = {"type": "text", "text": "T\nC\n"}
    assert titled == ask_openai(channel, head, {"type": "document", "document": URL}, question)


def test_a_tool_may_return_a_document(channel: grpc.Channel) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": BASE64}
    use = {"type": "tool_use", "id": "1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document", "source": source}]}
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    messages: list[Any] = [
        {"role": "user", "content": "Read."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "tools": tools, "tool_choice": {"type": "none"}}
    stub = anthropic_pb2_grpc.AnthropicServiceStub(channel)
    found = post_json(stub.CreateMessage, body)["usage"]
    result["content"] = [{"type": "text", "text": ""}]
    without = post_json(stub.CreateMessage, body)["usage"]
    num_tokens = [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in (found, without)]
    assert num_tokens[0] > num_tokens[1] + 100


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "data": base64.b64encode(b"%PDF-1.7").decode()},
        {"type": "url", "url": "data:application/pdf;base64,JVBERi0xLjc="},
    ],
)
def test_an_error_names_what_anthropic_s_client_sent(channel: grpc.Channel, source: Any) -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "document", "title": "T", "source": source}]
    with pytest.raises(
        grpc.RpcError, match=r"'messages\[0\].content\[1\].source': the document is corrupt or truncated"
    ):
        ask_anthropic(channel, {"role": "user", "content": blocks})


def test_an_error_names_what_openai_s_client_sent(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match=r"'messages\[0\].content\[0\].file.file_data': the document is corrupt"):
        ask_openai(channel, {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0xLjc="}})


@pytest.mark.parametrize("data", [heic(scene(96, 64)), encode(scene(96, 64), "AVIF")], ids=["HEIC", "AVIF"])
def test_images_of_phones_stand_beside_documents(channel: grpc.Channel, data: bytes) -> None:
    file, question = base64.b64encode(data).decode(), {"type": "text", "text": "Which?"}
    page = {"type": "document", "document": {"url": URL, "last_page": 1}}
    image = {"type": "image_url", "image_url": {"url": f"data:image/heic;base64,{file}"}}
    expected = ask_openai(channel, page, image, question)
    assert ask_openai(channel, page, {"type": "file", "file": {"file_data": file}}, question) == expected
    one_page = document([rectangle(COLOURS[0], 40, 20, 200, 120) + text("page 0")])
    pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(one_page).decode()}
    photo = {"type": "base64", "media_type": "image/heic", "data": file}
    blocks = [{"type": "document", "source": pdf}, {"type": "image", "source": photo}, question]
    assert ask_anthropic(channel, {"role": "user", "content": blocks}) == expected
