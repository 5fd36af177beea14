"""Answers of the clients as messages of the caller's own types."""

from typing import Any

import pytest

from glimpse.client import AnswerError, OptionError
from glimpse.v1 import content_pb2, generation_pb2
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS
from tests.protos.compiled import message_class

ENDING = {len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>"): 40.0}
CLOSING = {PLAIN_TOKENS.index(character): 4.0 for character in '"}]'}
OPTIONS = {"seed": 1, "max_tokens": 400, "logit_bias": CLOSING | ENDING}


@pytest.mark.parametrize("name", ["Scene", "Times", "Required"])
async def test_the_answer_is_a_message(client: Any, name: str) -> None:
    kind = message_class(name)
    answer = await client.chat("Hello", answer=kind, **OPTIONS)
    assert isinstance(answer, kind)
    assert answer.IsInitialized()
    *_, last, _usage = [chunk async for chunk in client.stream("Hello", answer=kind, **OPTIONS)]
    assert last.answer(kind) == answer


async def test_types_of_generated_code_are_described_with_what_they_import(client: Any) -> None:
    # content.proto imports other files of the project.
    answer = await client.chat("Hello", answer=content_pb2.FunctionCall, **OPTIONS)
    assert isinstance(answer, content_pb2.FunctionCall)


async def test_an_answer_that_is_cut_is_an_error_with_the_response(client: Any) -> None:
    with pytest.raises(AnswerError, match="The answer is cut") as caught:
        await client.chat("Hello", answer=message_class("Scene"), max_tokens=3)
    assert caught.value.response.choices[0].finish_reason == generation_pb2.FINISH_REASON_LENGTH


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answer": dict}, "'answer': expected a protobuf message class, got <class 'dict'>"),
        ({"answer": content_pb2.FunctionCall(), "timeout": 1}, "'answer': expected a protobuf message class, got "),
        (
            {"answer": content_pb2.FunctionCall, "response_format": {"type": "json_object"}},
            "'response_format': cannot be combined with 'answer'",
        ),
    ],
)
async def test_what_is_no_message_class_is_refused(client: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        await client.chat("Hello", **options)
    assert str(caught.value).startswith(words)
