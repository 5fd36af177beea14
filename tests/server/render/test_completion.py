"""Tests for CompletionService responses: what a stream's chunks carry."""

import math

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText
from glimpse.engine.protocol.messages import FinishReason
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.completion import CompletionRenderer
from glimpse.server.request import CompletionRequest
from glimpse.v1 import completion_pb2
from tests.server.requests import GENERATION

HEAD = CompletionHead(id="cmpl-1", created=5, model="m")
REQUEST = CompletionRequest(generation=GENERATION, include_usage=False, echo=False, num_prompt_logprobs=1)


def test_scores_of_the_prompt_come_even_while_the_text_is_withheld() -> None:
    renderer = CompletionRenderer(HEAD, REQUEST, [""])
    score = TokenText(token_id=3, text="a", bytes=b"a", logprob=-0.5, rank=2)
    first = TokenText(token_id=2, text="b", bytes=b"b", logprob=math.nan)
    chunk = renderer.chunk(Delta(text="", prompt_tokens=(first, score)))
    assert isinstance(chunk, completion_pb2.StreamCompletionResponse)
    assert [dict(each.tokens).keys() for each in chunk.choices[0].prompt_logprobs] == [set(), {3}]
    assert renderer.chunk(Delta(text="")) is None
    last = renderer.chunk(Delta(text="c", finish=FinishReason.STOP))
    assert isinstance(last, completion_pb2.StreamCompletionResponse)
    assert not last.choices[0].prompt_logprobs
