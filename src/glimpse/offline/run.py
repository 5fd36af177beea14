"""Runs a batch of requests to completion on an engine core in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glimpse.engine.checkpoint.text.output_processor import Delta, OutputProcessor, TokenText, prompt_token_texts
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import Embed, FinishReason, Generate, LoadAdapter, TokenEvent, UnloadAdapter
from glimpse.engine.protocol.pooling_params import PoolingMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    """Among the completions of its prompt, from 0."""
    text: str
    token_ids: list[int]
    """All generated tokens, including an end token and the tokens of a stop string."""
    logprobs: list[TokenText] | None
    """Log-probabilities of the tokens in the text; None unless requested. Excludes end tokens, and a stop string that
    is not part of the text."""
    finish_reason: FinishReason
    """STOP or LENGTH."""
    answer: Message | None = None
    """The message that `LLM.chat` was asked for; None where the text is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The output for one prompt."""

    prompt_token_ids: list[int]
    """The prompt, with as many placeholder tokens as each medium has tokens."""
    outputs: list[CompletionOutput]
    """Completions of the prompt, as many as `SamplingParams.n`."""
    prompt_logprobs: list[TokenText] | None = None
    """Log-probabilities of the prompt's tokens, NaN for the first; None unless requested."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache when the first of its completions began."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingOutput:
    """The embedding of one prompt."""

    prompt_token_ids: list[int]
    """The prompt, with as many placeholder tokens as each medium has tokens."""
    embedding: npt.NDArray[np.float32]
    """float32 [dimensions], or with a vector for each token, [tokens, dimensions]."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutput:
    """How well a document answers a query."""

    prompt_token_ids: list[int]
    """The prompt, which asks the model whether it does; for late interaction that of the document."""
    score: float
    """The probability of "yes" against "no", 0 to 1; for late interaction a sum over the query's tokens."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankOutput:
    """A document that was ordered by how well it answers a query."""

    index: int
    """Position among the documents that were passed, starting at 0."""
    document: str | Mapping[str, Any]
    relevance_score: float
    """The probability of "yes" against "no", 0 to 1; for late interaction a sum over the query's tokens."""


@dataclass(slots=True, kw_only=True)
class _InProgress:
    """A completion in progress."""

    request: Generate
    tokenizer: Tokenizer
    processor: OutputProcessor
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    tokens: list[TokenText] = field(default_factory=list[TokenText])
    num_cached_tokens: int = 0
    finish: FinishReason | None = None
    prompt_tokens: list[TokenText] | None = None


def run_batch(core: Core, requests: Sequence[Generate], tokenizer: Tokenizer, *, progress: bool) -> list[RequestOutput]:
    """Completes requests and returns their outputs in the same order. Leaves no request in the core, even on failure.

    Args:
        progress: Show a progress bar on standard error.

    Raises:
        EngineError: the engine refused a request or failed.
    """
    groups = [[_begin(answer, tokenizer) for answer in request.each()] for request in requests]
    completions = {own.request.request_id: own for group in groups for own in group}
    with _progress_bar(enabled=progress) as bar:
        task = bar.add_task("completions", total=len(completions))
        try:
            for completion in completions.values():
                core.submit(completion.request)
            while core.has_work:
                bar.advance(task, _step(core, completions))
        finally:
            core.shutdown()
    return [_request_output(group) for group in groups]


def _begin(request: Generate, tokenizer: Tokenizer) -> _InProgress:
    processor = OutputProcessor(
        tokenizer,
        stop=request.sampling.stop,
        include_stop=request.sampling.include_stop_str_in_output,
        min_tokens=request.sampling.min_tokens,
        logprobs=request.sampling.logprobs,
        hidden_ids=None if request.sampling.skip_special_tokens else (),
    )
    return _InProgress(request=request, tokenizer=tokenizer, processor=processor)


def run_embeddings(core: Core, requests: Sequence[Embed], *, progress: bool) -> list[EmbeddingOutput]:
    """Does what `run_batch` does, for requests for embeddings."""
    events: dict[str, TokenEvent] = {}
    with _progress_bar(enabled=progress) as bar:
        task = bar.add_task("embeddings", total=len(requests))
        try:
            for request in requests:
                core.submit(request)
            while core.has_work:
                ended = core.step().events
                _raise_failure(ended)
                events |= {event.request_id: event for event in ended}
                bar.advance(task, len(ended))
        finally:
            core.shutdown()
    return [_embedding_output(request, events[request.request_id]) for request in requests]


def change_adapters(core: Core, request: LoadAdapter | UnloadAdapter) -> tuple[str, ...]:
    """Loads or unloads an adapter and returns the names of all. Leaves no request in the core, even on failure.

    Raises:
        EngineError: the engine refused it.
    """
    names: tuple[str, ...] = ()
    try:
        core.change_adapters(request)
        while core.has_work:
            step = core.step()
            _raise_failure(step.events)
            names = names if step.adapters is None else tuple(step.adapters)
    finally:
        core.shutdown()
    return names


def _embedding_output(request: Embed, event: TokenEvent) -> EmbeddingOutput:
    values, is_of_tokens = np.frombuffer(event.embedding, dtype="<f4"), request.pooling.mode is PoolingMode.TOKEN
    return EmbeddingOutput(
        prompt_token_ids=request.token_ids,
        embedding=values.reshape(len(request.token_ids), -1) if is_of_tokens else values,
        num_cached_tokens=event.stats.num_cached_tokens,
    )


def _raise_failure(events: Sequence[TokenEvent]) -> None:
    for event in events:
        if event.finish is FinishReason.ERROR:
            raise EngineError(event.error or EngineErrorCode.INTERNAL, event.message)


def _step(core: Core, completions: dict[str, _InProgress]) -> int:
    """Runs one engine step; returns the number of completions that it finished."""
    num_finished = 0
    for event in core.step().events:
        completion = completions[event.request_id]
        if completion.finish is None:
            if _add(completion, event).stop_string:
                core.cancel(event.request_id)
            num_finished += completion.finish is not None
    return num_finished


def _add(completion: _InProgress, event: TokenEvent) -> Delta:
    _raise_failure([event])
    delta = completion.processor.feed(event)
    completion.text += delta.text
    completion.token_ids += delta.token_ids
    completion.tokens += delta.tokens
    completion.num_cached_tokens = max(completion.num_cached_tokens, delta.stats.num_cached_tokens)
    completion.finish = delta.finish
    prompt = completion.request.token_ids
    if completion.request.sampling.prompt_logprobs is not None and (event.prompt_logprobs or len(prompt) == 1):
        completion.prompt_tokens = list(prompt_token_texts(completion.tokenizer, prompt, event.prompt_logprobs))
    return delta


def _request_output(completions: Sequence[_InProgress]) -> RequestOutput:
    """Returns the output of a prompt. Later completions hit the blocks that the first one computed."""
    return RequestOutput(
        prompt_token_ids=completions[0].request.token_ids,
        outputs=[_output(index, completion) for index, completion in enumerate(completions)],
        prompt_logprobs=completions[0].prompt_tokens,
        num_cached_tokens=min(completion.num_cached_tokens for completion in completions),
    )


def _output(index: int, completion: _InProgress) -> CompletionOutput:
    assert completion.finish is not None
    return CompletionOutput(
        index=index,
        text=completion.text,
        token_ids=completion.token_ids,
        logprobs=None if completion.request.sampling.logprobs is None else completion.tokens,
        finish_reason=completion.finish,
    )


def _progress_bar(*, enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)
