"""Stored responses: conversations go on from them, with media and all; they are read, listed and deleted."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from glimpse.openai.v1 import openai_pb2_grpc, responses_pb2
from glimpse.server.rpc.context import KEY_HEADER
from glimpse.v1 import media_pb2, media_pb2_grpc
from tests.server.dialects.responses_client import RESPONSE, document_of
from tests.server.requests import json_bodies, png
from tests.server.services.error_details import refusal
from tests.server.services.test_responses import FORMAT, IMAGE, TOOL, ask, post, said, streamed, text, text_of
from tests.server.serving import served


def stub(channel: grpc.Channel) -> Any:
    return openai_pb2_grpc.OpenAIServiceStub(channel)


def get(channel: grpc.Channel, name: str) -> Any:
    return document_of(RESPONSE, stub(channel).GetResponse(responses_pb2.GetResponseRequest(response_id=name)).data)


def items(channel: grpc.Channel, name: str, **members: Any) -> Any:
    wire = responses_pb2.ListInputItemsRequest(response_id=name, **members)
    return json.loads(stub(channel).ListInputItems(wire).data)


def test_a_response_is_read_as_it_was_sent(channel: grpc.Channel) -> None:
    for found in (ask(channel, text={"format": FORMAT}, tools=[TOOL]), streamed(channel, metadata={"a": "b"})):
        assert get(channel, found["id"]) == found


def test_a_conversation_goes_on_with_its_media(channel: grpc.Channel) -> None:
    first = streamed(channel, instructions="Be brief.", input=[said("user", IMAGE, text("the other"))])
    second = ask(channel, input="and now", previous_response_id=first["id"])
    third = ask(channel, input="at last", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    turns = [said("user", IMAGE, text("the other")), *first["output"], said("user", text("and now")),
             *second["output"], said("user", text("at last"))]  # fmt: skip
    whole = ask(channel, input=turns)
    assert text_of(third) == text_of(whole)
    assert third["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def test_a_function_s_output_answers_a_stored_call(channel: grpc.Channel) -> None:
    asked: Any = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 100}
    (call,) = (first := ask(channel, **asked))["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": [text("A tree."), IMAGE]}
    second = ask(channel, input=[output], previous_response_id=first["id"])
    same = ask(channel, input=[said("user", text("the other")), call, output])
    assert text_of(second) == text_of(same)
    reference = {"type": "item_reference", "id": call["id"]}
    again = ask(channel, input=[said("user", text("the other")), reference, output])
    assert text_of(again) == text_of(same)


def test_items_are_listed(channel: grpc.Channel) -> None:
    asked = [{"role": "system", "content": "a"}, {"role": "user", "content": [text("b"), IMAGE]},
             {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]  # fmt: skip
    name = ask(channel, input=asked)["id"]
    whole = items(channel, name, order="asc")
    assert [item["role"] for item in whole["data"]] == ["system", "user", "assistant", "user"]
    assert whole["data"][1]["content"] == [text("b"), IMAGE]
    assert whole["data"][2]["content"] == [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]
    assert whole["has_more"] is False
    names = [item["id"] for item in whole["data"]]
    assert (whole["first_id"], whole["last_id"], len(set(names))) == (names[0], names[-1], 4)
    page = items(channel, name, limit=2)
    assert ([item["id"] for item in page["data"]], page["has_more"]) == (names[:1:-1], True)
    rest = items(channel, name, after=page["last_id"])
    assert [item["id"] for item in rest["data"]] == names[1::-1]
    code, details = refusal(lambda: items(channel, name, after="msg_1"))
    assert (code, details[:7]) == (grpc.StatusCode.INVALID_ARGUMENT, "'after'")


def test_the_items_of_earlier_turns_are_listed_too(channel: grpc.Channel) -> None:
    first = ask(channel, input=[said("user", IMAGE, text("one"))], instructions="Be brief.")
    second = ask(channel, input="two", previous_response_id=first["id"])
    third = ask(channel, input="three", previous_response_id=second["id"])
    whole = items(channel, third["id"], order="asc")["data"]
    answers = [*first["output"], *second["output"]]
    assert [item for item in whole if item["role"] == "assistant"] == answers
    assert [item["content"][-1]["text"] for item in whole if item["role"] == "user"] == ["one", "two", "three"]
    assert [item["role"] for item in whole[::2]] == ["user"] * 3
    assert items(channel, third["id"])["data"] == whole[::-1]
    stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=first["id"]))
    code, details = refusal(lambda: items(channel, third["id"]))
    assert (code, first["id"] in details) == (grpc.StatusCode.NOT_FOUND, True)


@pytest.mark.parametrize("key", ["json-123", "key-1-2", "chat-7", "x" * 64])
def test_ids_end_with_the_routing_key(channel: grpc.Channel, key: str) -> None:
    first = ask(channel, headers=[(KEY_HEADER, key)])
    assert first["id"].endswith(f"--{key}")
    (item,) = items(channel, first["id"])["data"]
    same = ask(channel, input=[{"type": "item_reference", "id": item["id"]}], headers=[(KEY_HEADER, key)])
    assert text_of(same) == text_of(first)


@pytest.mark.parametrize("key", ["-", "two words", "a_b", "x" * 65, "a--"])
def test_other_keys_are_not_in_ids(channel: grpc.Channel, key: str) -> None:
    name = ask(channel, headers=[(KEY_HEADER, key)])["id"]
    assert "--" not in name


@pytest.mark.parametrize("nothing", [None, []])
def test_a_conversation_needs_no_further_input(channel: grpc.Channel, nothing: Any) -> None:
    said_before = [said("user", text("the other"))]
    first = ask(channel, input=said_before)
    same = ask(channel, input=[*said_before, *first["output"]])
    members: Any = {"input": nothing, "previous_response_id": first["id"]}
    again = ask(channel, **members)
    assert text_of(again) == text_of(same)
    assert again["usage"]["input_tokens"] == same["usage"]["input_tokens"]
    assert [item["role"] for item in items(channel, again["id"], order="asc")["data"]] == ["user", "assistant"]
    for asked, num_tokens in (
        (members, again["usage"]["input_tokens"]),
        ({"instructions": "Be brief."}, ask(channel, input=None, instructions="Be brief.")["usage"]["input_tokens"]),
    ):
        assert json.loads(stub(channel).CountInputTokens(json_bodies(asked)).data)["input_tokens"] == num_tokens
    code, details = refusal(lambda: stub(channel).CountInputTokens(json_bodies({"input": nothing})))
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "'input': required, but missing or empty; send at least one element",
    )


def test_what_is_deleted_or_not_stored_is_not_there(channel: grpc.Channel) -> None:
    kept, forgotten = ask(channel), ask(channel, store=False)
    deleted = stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=kept["id"]))
    assert json.loads(deleted.data) == {"object": "response", "id": kept["id"], "deleted": True}
    for name in (kept["id"], forgotten["id"], "resp_1"):
        for call in (
            lambda name=name: get(channel, name),
            lambda name=name: items(channel, name),
            lambda name=name: stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=name)),
            lambda name=name: stub(channel).CancelResponse(responses_pb2.CancelResponseRequest(response_id=name)),
        ):
            code, details = refusal(call)
            assert (code, details.partition(":")[0]) == (grpc.StatusCode.NOT_FOUND, "'response_id'")
        code, details = refusal(lambda name=name: post(channel, previous_response_id=name))
        assert (code, details.partition(":")[0]) == (grpc.StatusCode.NOT_FOUND, "'previous_response_id'")
        item = {"type": "item_reference", "id": f"msg_{name.partition('_')[2]}_0"}
        code, details = refusal(lambda item=item: post(channel, input=[said("user", text("a")), item]))
        expected = f"'input[1].id': expected what a stored response has, got '{item['id'][:64]}'; it may have expired"
        assert (code, details) == (grpc.StatusCode.NOT_FOUND, expected)


def test_a_conversation_ends_with_any_of_its_responses(channel: grpc.Channel) -> None:
    first = ask(channel)
    second = ask(channel, previous_response_id=first["id"])
    third = ask(channel, previous_response_id=second["id"])
    stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=first["id"]))
    assert get(channel, third["id"]) == third
    code, details = refusal(lambda: post(channel, previous_response_id=third["id"]))
    assert code is grpc.StatusCode.NOT_FOUND
    assert details.startswith("'previous_response_id': expected a conversation of which each response is stored, got ")
    assert third["id"][:64] in details
    assert f"the earlier '{first['id'][:64]}' was deleted or has expired; send its items in 'input'" in details


def test_only_background_responses_could_be_cancelled_or_streamed_again(channel: grpc.Channel) -> None:
    name = ask(channel)["id"]
    for call, field in (
        (lambda: stub(channel).CancelResponse(responses_pb2.CancelResponseRequest(response_id=name)), "'response_id'"),
        (
            lambda: stub(channel).GetResponse(responses_pb2.GetResponseRequest(response_id=name, stream=True)),
            "'stream'",
        ),
    ):
        code, details = refusal(call)
        assert (code, details.partition(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.fixture(scope="module")
def forgetful(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    folder = tmp_path_factory.mktemp("forgetful")
    with served(tiny_checkpoint, folder, "--response-store-bytes=0") as server, server.channel() as opened:
        yield opened


def test_a_server_that_stores_none_says_so(forgetful: grpc.Channel) -> None:
    assert "x-glimpse-ignored-fields" not in post(forgetful)[1]
    data, headers = post(forgetful, store=True)
    assert headers["x-glimpse-ignored-fields"] == "store"
    name = json.loads(data)["id"]
    code, details = refusal(lambda: post(forgetful, previous_response_id=name))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "--response-store-bytes" in details


def large_image(*colour: int) -> Any:
    """An image that is stored apart; what follows its end is ignored."""
    data = base64.b64encode(png(colour=(colour[0], colour[1], colour[2])) + b"x" * 4000).decode()
    return {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}


def test_media_are_stored_apart_and_leave_with_the_last_response_that_has_them(channel: grpc.Channel) -> None:
    image = large_image(0, 128, 128)
    first = ask(channel, input=[said("user", image, text("one"))])
    again = ask(channel, input=[said("user", image, text("two"))])
    (listed,) = items(channel, first["id"])["data"]
    file_id = listed["content"][0]["file_id"]
    assert items(channel, again["id"])["data"][0]["content"][0]["file_id"] == file_id
    second = ask(channel, input="and now", previous_response_id=first["id"])
    turns = [said("user", image, text("one")), *first["output"], said("user", text("and now"))]
    assert text_of(second) == text_of(ask(channel, input=turns, store=False))
    by_id = ask(channel, input=[said("user", {"type": "input_image", "file_id": file_id}, text("two"))], store=False)
    assert text_of(by_id) == text_of(again)
    reference = ask(channel, input=[{"type": "item_reference", "id": listed["id"]}])
    assert text_of(reference) == text_of(first)
    for found in (first, again):
        stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=found["id"]))
    assert text_of(ask(channel, input="go on", previous_response_id=reference["id"]))
    stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=reference["id"]))
    by_id = [said("user", {"type": "input_image", "file_id": file_id}, text("two"))]
    code, _ = refusal(lambda: post(channel, input=by_id, store=False))
    assert code is grpc.StatusCode.FAILED_PRECONDITION


def test_media_that_are_listed_by_a_file_id_can_be_read_until_their_response_is_deleted(channel: grpc.Channel) -> None:
    image = large_image(0, 64, 128)
    first = ask(channel, input=[said("user", image)])
    file_id = items(channel, first["id"])["data"][0]["content"][0]["file_id"]
    media: Any = media_pb2_grpc.MediaServiceStub(channel)
    get_media, download = (
        media_pb2.GetMediaRequest(upload_id=file_id),
        media_pb2.DownloadMediaRequest(upload_id=file_id),
    )
    data = base64.b64decode(image["image_url"].partition(",")[2])
    found = media.GetMedia(get_media).media
    assert (found.upload_id, found.size_bytes, found.filename, found.purpose) == (file_id, len(data), "", "user_data")
    assert b"".join(each.chunk for each in media.DownloadMedia(download)) == data
    assert file_id not in {each.upload_id for each in media.ListMedia(media_pb2.ListMediaRequest()).media}
    delete = media_pb2.DeleteMediaRequest(upload_id=file_id)
    assert refusal(lambda: media.DeleteMedia(delete))[0] is grpc.StatusCode.NOT_FOUND
    stub(channel).DeleteResponse(responses_pb2.DeleteResponseRequest(response_id=first["id"]))
    assert refusal(lambda: media.GetMedia(get_media))[0] is grpc.StatusCode.NOT_FOUND
    assert refusal(lambda: list(media.DownloadMedia(download)))[0] is grpc.StatusCode.NOT_FOUND


def test_frames_and_documents_are_stored_apart(channel: grpc.Channel) -> None:
    frame = base64.b64encode(png(colour=(0, 0, 128)) + b"x" * 4000).decode()
    video = {"type": "input_video", "video_url": {"url": f"data:video/jpeg;base64,{frame},{frame}"}}
    first = ask(channel, input=[said("user", video, text("what"))])
    (listed,) = items(channel, first["id"])["data"]
    assert frame not in json.dumps(listed)
    second = ask(channel, input="and now", previous_response_id=first["id"])
    turns = [said("user", video, text("what")), *first["output"], said("user", text("and now"))]
    assert text_of(second) == text_of(ask(channel, input=turns))
