"""The options cover the API, and importing the clients is quick."""

import io
import json
import subprocess
import sys
from typing import Any, get_type_hints

import numpy as np
import PIL.Image
import pytest
from PIL import ExifTags

from glimpse.client import (
    ChatOptions,
    CompletionOptions,
    Document,
    EmbedOptions,
    Image,
    Message,
    TokenizeOptions,
    Video,
)
from glimpse.client.openai_json import OptionError
from glimpse.client.options import CallOptions, QuoteOptions
from glimpse.client.requests import (
    call_arguments,
    chat_request,
    completion_request,
    embedding_request,
    upload_requests,
)
from glimpse.media.processing.rgb import upright_rgb
from glimpse.v1 import chat_pb2, completion_pb2, content_pb2, embedding_pb2, generation_pb2, media_pb2, tokenizer_pb2

WHITE = (255, 255, 255)


def test_options_cover_the_fields_of_requests() -> None:
    fields = {
        *chat_pb2.CreateChatCompletionRequest.DESCRIPTOR.fields_by_name,
        *generation_pb2.GenerationOptions.DESCRIPTOR.fields_by_name,
    }
    call = set(get_type_hints(CallOptions))
    assert set(get_type_hints(ChatOptions)) - call == fields - {"messages", "generation", "stream_options"} | {
        "max_tokens"
    }
    count = set(chat_pb2.CountTokensRequest.DESCRIPTOR.fields_by_name)
    assert set(get_type_hints(QuoteOptions)) - call == count - {"messages"}


def test_options_cover_the_fields_of_completions_and_tokenization() -> None:
    call = set(get_type_hints(CallOptions))
    fields = {
        *completion_pb2.CreateCompletionRequest.DESCRIPTOR.fields_by_name,
        *generation_pb2.GenerationOptions.DESCRIPTOR.fields_by_name,
    }
    own = fields - {"prompts", "generation", "stream_options", "num_logprobs", "top_logprobs"} | {"max_tokens"}
    assert set(get_type_hints(CompletionOptions)) - call == own
    tokenize = set(tokenizer_pb2.TokenizeRequest.DESCRIPTOR.fields_by_name)
    assert set(get_type_hints(TokenizeOptions)) - call == tokenize - {"prompt", "messages"}


def test_arrays_are_sent_as_png() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 7, 3), dtype=np.uint8)
    (message,) = chat_request([Image(pixels[0]), Video(pixels), Video(list(pixels)), "What?"], {}).messages
    image, video, frames, _ = message.content
    assert video.video == frames.video
    sent = [image.image.source, *video.video.frames.frames]
    for source, array in zip(sent, [pixels[0], *pixels], strict=True):
        assert (np.asarray(PIL.Image.open(io.BytesIO(source.data))) == array).all()
    grey_and_alpha = [pixels[0, :, :, 0], np.concatenate([pixels[0], pixels[1, :, :, :1]], axis=2)]
    (message,) = chat_request([Image(array[:, ::2]) for array in grey_and_alpha], {}).messages
    for part, array in zip(message.content, grey_and_alpha, strict=True):
        assert (np.asarray(PIL.Image.open(io.BytesIO(part.image.source.data))) == array[:, ::2]).all()
    with pytest.raises(TypeError, match=r"'source': expected a uint8 array .*, got float64 \[5, 7, 3\]"):
        chat_request([Image(pixels[0] / 255)], {})  # pyright: ignore[reportArgumentType] - a wrong type


def sent_as(image: PIL.Image.Image) -> PIL.Image.Image:
    """A Pillow image as the server opens it."""
    (message,) = chat_request([Image(image), "What?"], {}).messages
    sent = PIL.Image.open(io.BytesIO(message.content[0].image.source.data))
    sent.load()
    return sent


def test_images_of_pillow_keep_their_orientation_and_nothing_else_of_their_exif_data() -> None:
    file, exif = io.BytesIO(), PIL.Image.Exif()
    exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Artist] = 6, "someone"
    PIL.Image.new("RGB", (40, 20), "red").save(file, "JPEG", exif=exif)
    sent = sent_as(PIL.Image.open(file))
    assert upright_rgb(sent, WHITE).size == (20, 40)
    assert dict(sent.getexif()) == {ExifTags.Base.Orientation: 6}
    assert not sent_as(PIL.Image.new("RGB", (40, 20))).getexif()


@pytest.mark.parametrize("mode", ["PA", "RGBa", "RGBA", "LA", "P", "I;16B", "I;16", "CMYK"])
def test_images_of_pillow_look_as_they_do_to_the_server(mode: str) -> None:
    if mode.startswith("I"):
        image = PIL.Image.new("I", (8, 8), 40_000).convert(mode)
    else:
        image = PIL.Image.new("RGBA", (8, 8), (200, 30, 40, 0))
        image = (image.convert("P") if mode == "PA" else image).convert(mode)
    assert sent_as(image).mode in (mode, "RGBA", "RGB", "I;16")
    assert upright_rgb(sent_as(image), WHITE).tobytes() == upright_rgb(image, WHITE).tobytes()


@pytest.mark.parametrize("key", ["conversation-7", "a" * 128])
def test_gateways_get_the_prompt_cache_key_as_a_header_too(key: str) -> None:
    metadata = call_arguments(ChatOptions(prompt_cache_key=key, request_id="1"), None)["metadata"]
    assert metadata == [("x-request-id", "1"), ("x-prompt-cache-key", key)]


@pytest.mark.parametrize("key", ["", "-", "two words", "ключ", "back\\slash", "a" * 129])
def test_keys_that_the_gateway_would_change_are_not_sent_as_a_header(key: str) -> None:
    assert call_arguments(ChatOptions(prompt_cache_key=key), None)["metadata"] is None
    assert chat_request("Hi", {"prompt_cache_key": key}).prompt_cache_key == key


def test_an_upload_s_key_must_fit_a_header() -> None:
    upload_requests(b"file", {"prompt_cache_key": "conversation-7"})
    with pytest.raises(ValueError, match="'prompt_cache_key': expected 1 to 128 ASCII characters"):
        upload_requests(b"file", {"prompt_cache_key": "two words"})


def test_options_of_embed_cover_the_fields_of_its_request() -> None:
    fields = set(embedding_pb2.CreateEmbeddingsRequest.DESCRIPTOR.fields_by_name)
    # `inputs` has conversations, and the client decodes the values itself.
    options = set(get_type_hints(EmbedOptions)) - set(get_type_hints(CallOptions))
    assert options == fields - {"inputs", "messages", "encoding_format"}


def test_inputs_of_embed_become_texts_tokens_and_conversations() -> None:
    request = embedding_request(
        ["a", [5, 6], [Image(b"image"), "b"], [Message("user", "c"), Message("assistant", "d")]], {"pooling": "mean"}
    )
    assert request.pooling == embedding_pb2.POOLING_MEAN
    assert [each.WhichOneof("input") for each in request.inputs] == ["text", "token_ids", *["conversation"] * 2]
    assert [len(each.conversation.messages) for each in request.inputs] == [0, 0, 1, 2]
    with pytest.raises(TypeError, match="'inputs': expected a list of inputs, got str"):
        embedding_request("a", {})


def test_options_become_fields() -> None:
    schema = {"type": "object"}
    request = chat_request(
        "Hello", {"top_k": 3, "stop": ["a"], "response_format": schema, "reasoning_effort": "low", "timeout": 1.0}
    )
    assert not request.HasField("stream_options")
    assert (request.generation.top_k, list(request.generation.stop)) == (3, ["a"])
    assert json.loads(request.response_format.json_schema.schema) == schema
    assert request.reasoning_effort == chat_pb2.REASONING_EFFORT_LOW
    assert chat_request("Hello", {}, streaming=True).stream_options.include_usage


def test_a_document_has_its_pages_and_what_is_read_of_them() -> None:
    pages = Document(b"%PDF-", first_page=2, last_page=3, page_content="image_and_text", dpi=72, detail="low", uuid="a")
    (part, _) = chat_request([pages, "What is this?"], {}).messages[0].content
    assert (part.uuid, part.document.source.data, part.document.dpi) == ("a", b"%PDF-", 72)
    assert (part.document.first_page, part.document.last_page) == (2, 3)
    assert part.document.page_content == content_pb2.PAGE_CONTENT_IMAGE_AND_TEXT
    assert part.document.detail == content_pb2.IMAGE_DETAIL_LOW


def test_refuses_a_part_of_another_type() -> None:
    prompt: Any = [b"image", "What is this?"]
    with pytest.raises(TypeError, match="'prompt': expected texts, Image, Video, Audio and Document, got bytes"):
        chat_request(prompt, {})


def test_refuses_a_source_of_another_type() -> None:
    with pytest.raises(TypeError, match="expected a path, URL, bytes or an image, got int"):
        chat_request([Image(3)], {})  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["https://example.com/a.png", media_pb2.Media(upload_id="a")])
def test_uploads_only_what_is_here(source: str | media_pb2.Media) -> None:
    with pytest.raises(ValueError, match="'source': expected a path, bytes or an image"):
        upload_requests(source, {})


def test_importing_the_client_loads_no_server_and_no_numpy() -> None:
    code = (
        "import sys; from glimpse import Client, AsyncClient\n"
        "heavy = {'PIL', 'numpy', 'aiohttp', 'glimpse.engine', 'glimpse.media', 'glimpse.server'}\n"
        "print(heavy & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"


def test_refuses_allowed_tokens_without_one_which_would_allow_all() -> None:
    assert not chat_request("a", {}).generation.allowed_token_ids
    with pytest.raises(OptionError, match=r"^'allowed_token_ids': expected None or at least 1 token id, got 0"):
        chat_request("a", {"allowed_token_ids": []})
    with pytest.raises(OptionError, match=r"^'allowed_token_ids': expected"):
        completion_request("a", {"allowed_token_ids": ()})
