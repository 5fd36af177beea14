"""Renders completion deltas as CompletionService responses, in the format of OpenAI's legacy completions API."""

from collections.abc import Iterable, Sequence
from typing import Any

from glimpse.engine.checkpoint.text.output_processor import Delta, TokenText
from glimpse.server.generation.usage import Usage
from glimpse.server.render.chat import CompletionHead, render_finish_reason, render_prompt_logprobs, render_usage
from glimpse.server.request import CompletionRequest
from glimpse.server.rpc.text_chunks import TextChunk, TextTemplate
from glimpse.v1 import completion_pb2, generation_pb2


class CompletionRenderer:
    """Renders the completions of one request."""

    def __init__(self, head: CompletionHead, request: CompletionRequest, echoes: Sequence[str]) -> None:
        """`echoes` has the text that each completion begins with."""
        self._head = head
        self._echoes = echoes
        self._with_logprobs = request.generation.sampling.logprobs is not None
        self._num_prompt_logprobs = request.num_prompt_logprobs
        self._latest_scores: tuple[tuple[TokenText, ...], list[generation_pb2.PromptLogprobs]] = ((), [])
        """A prompt's tokens, and how they are rendered."""
        self._begun: set[int] = set()
        """Indices of the completions of which something is rendered."""
        self._templates: dict[int, TextTemplate] = {}
        """Completion index → its chunks that have only text."""

    def response(self, deltas: Iterable[Delta], usage: Usage) -> completion_pb2.CreateCompletionResponse:
        """Joins all deltas of the request into one response."""
        choices: dict[int, completion_pb2.CompletionChoice] = {}
        for delta in deltas:
            choice = choices.setdefault(delta.index, completion_pb2.CompletionChoice())
            new = self._choice(delta)
            # MergeFrom appends repeated fields but replaces strings.
            new.text = choice.text + new.text
            choice.MergeFrom(new)
        return completion_pb2.CreateCompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.system_fingerprint,
            choices=[choices[index] for index in sorted(choices)],
            usage=render_usage(usage),
        )

    def chunk(self, delta: Delta) -> completion_pb2.StreamCompletionResponse | TextChunk | None:
        """Renders one delta; None for an empty one."""
        has_more = delta.tokens or delta.token_ids or delta.prompt_tokens or delta.finish
        if delta.index in self._begun and delta.text and not has_more:
            return TextChunk(self._template(delta.index), delta.text)
        choice = self._choice(delta)
        has_tokens = choice.token_ids or choice.prompt_logprobs or choice.HasField("logprobs")
        if not (choice.text or has_tokens or delta.finish):
            return None
        return self._chunk(choices=[choice])

    def usage_chunk(self, usage: Usage) -> completion_pb2.StreamCompletionResponse:
        """Renders the last message of a stream that reports usage; it has no choices."""
        return self._chunk(usage=render_usage(usage))

    def _template(self, index: int) -> TextTemplate:
        template = self._templates.get(index)
        if template is None:
            chunk = self._chunk(choices=[completion_pb2.CompletionChoice(index=index)])
            template = self._templates[index] = TextTemplate(chunk, chunk.choices[0], "text")
        return template

    def _chunk(self, **members: Any) -> completion_pb2.StreamCompletionResponse:
        return completion_pb2.StreamCompletionResponse(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            system_fingerprint=self._head.system_fingerprint,
            **members,
        )

    def _choice(self, delta: Delta) -> completion_pb2.CompletionChoice:
        first, echo = delta.index not in self._begun, self._echoes[delta.index]
        self._begun.add(delta.index)
        tokens = (*delta.prompt_tokens, *delta.tokens) if first and echo and self._with_logprobs else delta.tokens
        return completion_pb2.CompletionChoice(
            index=delta.index,
            text=echo + delta.text if first else delta.text,
            logprobs=_render_logprobs(tokens, len(echo)) if tokens else None,
            finish_reason=render_finish_reason(delta.finish),
            token_ids=delta.token_ids,
            prompt_token_ids=delta.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(delta) if self._num_prompt_logprobs is not None else (),
        )

    def _prompt_logprobs(self, delta: Delta) -> Sequence[generation_pb2.PromptLogprobs]:
        """Renders those of a prompt once for all its continuations."""
        tokens, rendered = self._latest_scores
        if delta.prompt_tokens and tokens is not delta.prompt_tokens:
            rendered = render_prompt_logprobs([delta], self._num_prompt_logprobs)
            self._latest_scores = delta.prompt_tokens, rendered
        return rendered if delta.prompt_tokens else ()


def _render_logprobs(tokens: Iterable[TokenText], num_echoed: int) -> completion_pb2.CompletionLogprobs:
    """Renders tokens of a text that begins with some characters of the prompt."""
    rendered = completion_pb2.CompletionLogprobs()
    for token in tokens:
        rendered.tokens.append(token.text)
        rendered.token_logprobs.append(token.logprob)
        # Reversed, so that of two tokens with the same text the more likely one is kept.
        top_logprobs = {top.text: top.logprob for top in reversed(token.top)}
        if top_logprobs:
            top_logprobs.setdefault(token.text, token.logprob)
        rendered.top_logprobs.add(logprobs=top_logprobs)
        # What tokenizers put before the prompt is no part of its text.
        rendered.text_offset.append(max(num_echoed + token.offset, 0))
    return rendered
