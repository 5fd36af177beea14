"""Quotes: what a request would cost, only if it is asked for. Families have their own tests beside their answers."""

import grpc
import pytest

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2
from tests.media.pdfs import document, text
from tests.server.requests import image_part, png, request, user

Chat = chat_pb2_grpc.ChatServiceStub


def test_a_count_without_a_quote_tells_no_caches(chat: Chat) -> None:
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user("Hello")]))
    assert not counted.HasField("quote")
    assert counted.prompt_tokens_details.cached_tokens == 0


def test_a_quote_has_the_parts_of_all_messages(chat: Chat) -> None:
    messages = [user("What is this?", image_part(png(224, 112)), "And this?"), user(image_part(png(56, 56)))]
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=messages, quote=True, cache_salt="parts"))
    places = [(part.message_index, part.part_index) for part in counted.quote.parts]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert [part.medium.width for part in counted.quote.parts] == [0, 224, 0, 56]
    assert counted.quote.parts[1].medium.cache_tier == generation_pb2.MEDIA_CACHE_TIER_NONE
    again = chat.CountTokens(chat_pb2.CountTokensRequest(messages=messages, quote=True, cache_salt="parts"))
    assert again.quote.parts[1].medium.cache_tier == generation_pb2.MEDIA_CACHE_TIER_DECODED


def test_a_document_has_a_part_for_each_of_its_pages(chat: Chat) -> None:
    source = content_pb2.MediaSource(data=document([text("one"), text("two")]))
    part = content_pb2.ContentPart(document=content_pb2.DocumentPart(source=source))
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user(part, "What?")], quote=True))
    *pages, question = counted.quote.parts
    assert {part.part_index for part in pages} == {0}
    assert sum(part.HasField("medium") for part in pages) == 2
    assert (question.part_index, question.HasField("medium")) == (1, False)
    tokens = [part.tokens for part in pages if part.HasField("medium")]
    assert sum(tokens) == counted.prompt_tokens_details.image_tokens


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(chat: Chat) -> None:
    words = "the " * 5000
    with pytest.raises(grpc.RpcError) as refused:
        chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user(words)], quote=True))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_time_is_known_after_a_request(chat: Chat) -> None:
    chat.CreateChatCompletion(request(user("What time is it?")))
    counted = chat.CountTokens(chat_pb2.CountTokensRequest(messages=[user("What time is it now?")], quote=True))
    assert counted.quote.first_token_milliseconds > 0
