"""Answers of `LLM` as protobuf messages."""

import json
from typing import Any

import pytest
from google.protobuf import any_pb2, json_format

from glimpse.engine.protocol.messages import FinishReason
from glimpse.offline.llm import LLM, InputError, SamplingParams
from glimpse.v1 import content_pb2
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS
from tests.engine.offline.llm_inputs import user
from tests.protos.compiled import message_class

ENDING = {len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>"): 40.0}
CLOSING = {PLAIN_TOKENS.index(character): 4.0 for character in '"}]'}
SAMPLING = SamplingParams(n=3, seed=1, max_tokens=400, logit_bias=CLOSING | ENDING)


def test_each_output_has_its_message(llm: LLM) -> None:
    kind = message_class("Scene")
    (output,) = llm.chat([user("the end")], SAMPLING, answer=kind)
    for each in output.outputs:
        assert each.finish_reason is FinishReason.STOP
        assert each.answer == json_format.ParseDict(json.loads(each.text), kind())
    assert llm.chat([user("the end")], SAMPLING)[0].outputs[0].answer is None


def test_an_output_that_is_cut_has_no_message(llm: LLM) -> None:
    (output,) = llm.chat([user("the end")], [SamplingParams(max_tokens=3)], answer=message_class("Scene"))
    assert output.outputs[0].answer is None


@pytest.mark.parametrize(
    ("answer", "sampling", "message"),
    [
        (dict, SAMPLING, "'answer': expected a protobuf message class, got <class 'dict'>"),
        (content_pb2.FunctionCall, SamplingParams(structured_outputs={"regex": "a"}), "'answer': cannot be combined"),
        (content_pb2.FunctionCall, {"n": 2}, "'sampling_params': expected SamplingParams, got dict"),
        (any_pb2.Any, SAMPLING, "'answer': cannot be enforced: google.protobuf.Any may be of any type"),
    ],
)
def test_wrong_types_are_refused(llm: LLM, answer: Any, sampling: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        llm.chat([user("the end")], sampling, answer=answer)
    assert str(caught.value).startswith(message)
