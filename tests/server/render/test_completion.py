"""Tests for CompletionService responses: what a stream's chunks carry."""

import math
from dataclasses import replace

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText, TopToken
from glimpse.engine.protocol.messages import FinishReason
from glimpse.server.generation.usage import Usage
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


def test_the_token_is_among_the_most_likely_ones_where_these_are_told() -> None:
    generation = replace(GENERATION, sampling=replace(GENERATION.sampling, logprobs=1))
    renderer = CompletionRenderer(HEAD, replace(REQUEST, generation=generation), [""])
    likely = TopToken(token_id=2, text="b", bytes=b"b", logprob=-0.1)
    tokens = (
        TokenText(token_id=3, text="a", bytes=b"a", logprob=-5.0, top=(likely,)),
        TokenText(token_id=2, text="b", bytes=b"b", logprob=-0.1, top=(likely,)),
        TokenText(token_id=3, text="a", bytes=b"a", logprob=-5.0),
    )
    (choice,) = renderer.response([Delta(text="aba", tokens=tokens)], Usage()).choices
    found = [{text: round(each, 2) for text, each in top.logprobs.items()} for top in choice.logprobs.top_logprobs]
    assert found == [{"a": -5.0, "b": -0.1}, {"b": -0.1}, {}]
