"""Tests for CompletionService responses: what a stream's chunks carry."""

import math

from glimpse.engine.checkpoint.text.output_processor import TokenText
from glimpse.server.generation.completion_parser import CompletionFinishReason
from glimpse.server.generation.generator import CompletionDelta
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import CompletionHead
from glimpse.server.render.completion import CompletionRenderer
from glimpse.server.request import CompletionRequest
from glimpse.v1 import completion_pb2
from tests.server.requests import GENERATION

HEAD = CompletionHead(id="cmpl-1", created=5, model="m")
USAGE = Usage(prompt_tokens=1, media_tokens={}, cached_tokens=0, completion_tokens=1)
REQUEST = CompletionRequest(generation=GENERATION, include_usage=False, echo=False, num_prompt_logprobs=1)


def delta(
    text: str, *, prompt_tokens: tuple[TokenText, ...] = (), finish: CompletionFinishReason | None = None
) -> CompletionDelta:
    return CompletionDelta(
        index=0,
        text=text,
        tool_calls=(),
        tokens=(),
        finish_reason=finish,
        usage=USAGE,
        videos=(),
        prompt_tokens=prompt_tokens,
    )


def test_scores_of_the_prompt_come_even_while_the_text_is_withheld() -> None:
    renderer = CompletionRenderer(HEAD, REQUEST, [""])
    score = TokenText(token_id=3, text="a", bytes=b"a", logprob=-0.5, rank=2)
    first = TokenText(token_id=2, text="b", bytes=b"b", logprob=math.nan)
    chunk = renderer.chunk(delta("", prompt_tokens=(first, score)))
    assert isinstance(chunk, completion_pb2.StreamCompletionResponse)
    assert [dict(each.tokens).keys() for each in chunk.choices[0].prompt_logprobs] == [set(), {3}]
    assert renderer.chunk(delta("")) is None
    last = renderer.chunk(delta("c", finish=CompletionFinishReason.STOP))
    assert isinstance(last, completion_pb2.StreamCompletionResponse)
    assert not last.choices[0].prompt_logprobs
