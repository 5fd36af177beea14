"""A server whose model reads text alone: it answers text and refuses media by name."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from glimpse.v1 import (
    chat_pb2_grpc,
    completion_pb2,
    completion_pb2_grpc,
    content_pb2,
    model_pb2,
    model_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from tests.checkpoints.text import make_text_checkpoint
from tests.media.audio import audio_file, tone
from tests.media.images import scene
from tests.media.pdfs import document, of_images, text
from tests.server.requests import ask_in_json, image_part, image_url, png, request, user
from tests.server.services.error_details import details
from tests.server.serving import served

Chat = chat_pb2_grpc.ChatServiceStub
PART = "messages[0].content[0]"
START = "<|endoftext|>"


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server whose model supports text alone, and whose tokenizer begins texts with a token."""
    checkpoint = make_text_checkpoint(tmp_path_factory.mktemp("checkpoints") / "reading", "qwen3")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    start = (START, tokenizer.token_to_id(START))
    tokenizer.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[start])
    (checkpoint / "tokenizer.json").unlink()
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    with served(checkpoint, tmp_path_factory.mktemp("reading")) as server, server.channel() as channel:
        yield channel


def test_answers_and_finds_repeated_prompts_in_the_prefix_cache(reading: grpc.Channel) -> None:
    wire = request(user("word " * 40))
    first = Chat(reading).CreateChatCompletion(wire)
    second = Chat(reading).CreateChatCompletion(wire)
    assert first.usage.completion_tokens > 0
    assert second.choices == first.choices
    assert second.usage.prompt_tokens_details.cached_tokens > 64


def test_texts_begin_with_the_tokenizer_s_token_unless_a_request_wants_none(reading: grpc.Channel) -> None:
    def sent(**members: Any) -> list[int]:
        prompt = {
            "prompts": [{"text": "the sea"}],
            "generation": {"return_token_ids": True, "max_completion_tokens": 1},
        }
        wire = completion_pb2.CreateCompletionRequest(**prompt, **members)
        completion = completion_pb2_grpc.CompletionServiceStub(reading).CreateCompletion(wire)
        wire = tokenizer_pb2.TokenizeRequest(prompt="the sea", return_token_strs=True, **members)
        tokenized = tokenizer_pb2_grpc.TokenizerServiceStub(reading).Tokenize(wire)
        assert tokenized.tokens == completion.choices[0].prompt_token_ids
        assert (tokenized.token_strs[0] == START) == members.get("add_special_tokens", True)
        return [*tokenized.tokens]

    whole = sent()
    assert sent(add_special_tokens=True) == whole
    assert sent(add_special_tokens=False) == whole[1:]


def test_a_conversation_has_no_special_tokens_but_its_template_s(reading: grpc.Channel) -> None:
    def tokens(**members: Any) -> list[int]:
        wire = tokenizer_pb2.TokenizeRequest(messages=[user("the sea")], **members)
        return [*tokenizer_pb2_grpc.TokenizerServiceStub(reading).Tokenize(wire).tokens]

    assert tokens(add_special_tokens=False) == tokens()
    with pytest.raises(grpc.RpcError) as caught:
        tokens(add_special_tokens=True)
    assert details(caught.value)[1].field_violations[0].field == "add_special_tokens"


def test_model_description_lists_text_alone(reading: grpc.Channel) -> None:
    listed: Any = model_pb2_grpc.ModelServiceStub(reading).ListModels(model_pb2.ListModelsRequest())
    (model,) = listed.data
    assert list(model.input_modalities) == [model_pb2.MODALITY_TEXT]


@pytest.mark.parametrize(
    ("part", "member"),
    [
        (image_part(png()), "image"),
        (content_pb2.ContentPart(audio={"source": {"data": audio_file(tone(440, 16_000, 0.5), 16_000)}}), "audio"),
        (content_pb2.ContentPart(video={"source": {"url": "https://example.invalid/a.mp4"}}), "video"),
    ],
    ids=["image", "audio", "video"],
)
def test_refuses_media_by_name(reading: grpc.Channel, part: content_pb2.ContentPart, member: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(reading).CreateChatCompletion(request(user(part)))
    info, request_of = details(caught.value)
    (violation,) = request_of.field_violations
    assert (info.reason, violation.field) == ("UNSUPPORTED", f"{PART}.{member}.source")
    assert f"does not support {member} input" in violation.description


def test_refuses_an_image_over_openai_s_api(reading: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask_in_json(reading, image_url(png()))
    assert "does not support image input" in str(caught.value.details())


def _document(data: bytes, **members: Any) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(document={"source": {"data": data}, **members})


def test_a_document_is_its_text(reading: grpc.Channel) -> None:
    pages = document([text("first page"), text("second page")])
    read = Chat(reading).CreateChatCompletion(request(user(_document(pages), "What?")))
    assert (
        read.choices == Chat(reading).CreateChatCompletion(request(user("first page\n\nsecond page", "What?"))).choices
    )


@pytest.mark.parametrize(
    ("part", "field", "message"),
    [
        (
            _document(of_images([scene(60, 40).convert("RGB")])),
            "document.source",
            "expected a document with a text layer",
        ),
        (
            _document(document([""]), page_content=content_pb2.PAGE_CONTENT_IMAGE),
            "document.page_content",
            "expected 'text', since the model does not accept images",
        ),
    ],
)
def test_images_of_pages_are_refused(
    reading: grpc.Channel, part: content_pb2.ContentPart, field: str, message: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        Chat(reading).CreateChatCompletion(request(user(part)))
    (violation,) = details(caught.value)[1].field_violations
    assert violation.field == f"{PART}.{field}"
    assert message in violation.description
