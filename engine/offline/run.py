"""A batch of requests through a core in this process, from first step to last answer. Knows no prompts, no media."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol import FinishReason, Generate, TokenEvent
from glimpse.engine.scheduling.core import Core
from glimpse.engine.text.output_processor import OutputProcessor, TokenText
from glimpse.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    text: str
    token_ids: list[int]
    """What was generated, the token that ended the answer and those of a stop text included."""
    logprobs: list[TokenText] | None
    """Those of the tokens in the text, without an end token and a stop text; None if they were not asked for."""
    finish_reason: FinishReason
    """STOP or LENGTH."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """What became of one prompt."""

    prompt_token_ids: list[int]
    """The prompt as the model saw it; a picture is as many placeholders as it takes."""
    outputs: list[CompletionOutput]
    """Its answers; one for now."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared."""


@dataclass(slots=True, kw_only=True)
class _Answer:
    """An answer in the making."""

    request: Generate
    processor: OutputProcessor
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    tokens: list[TokenText] = field(default_factory=list[TokenText])
    num_cached_tokens: int = 0
    finish: FinishReason | None = None


def run_batch(core: Core, requests: Sequence[Generate], tokenizer: Tokenizer, *, progress: bool) -> list[RequestOutput]:
    """Computes requests to their ends and gives what came out in their order. Leaves nothing in the core in any case.

    Args:
        core: One with nothing else in flight.
        requests: With ids of their own.
        tokenizer: The checkpoint's.
        progress: A bar on standard error counts the answers.

    Raises:
        EngineError: the engine refused a request or failed.
    """
    answers = {
        request.request_id: _Answer(request=request, processor=_processor(request, tokenizer)) for request in requests
    }
    with _progress_bar(enabled=progress) as bar:
        task = bar.add_task("answers", total=len(requests))
        try:
            for request in requests:
                core.submit(request)
            while core.has_work:
                bar.advance(task, _step(core, answers))
        finally:
            core.shutdown()
    return [_output(answer) for answer in answers.values()]


def _step(core: Core, answers: dict[str, _Answer]) -> int:
    """One step of the engine; returns how many answers it finished."""
    num_finished = 0
    for event in core.step().events:
        answer = answers[event.request_id]
        if answer.finish is None:
            _add(answer, event)
            num_finished += answer.finish is not None
            if answer.finish is not None and event.finish is None:
                core.cancel(event.request_id)  # a stop text, which the engine does not know of
    return num_finished


def _add(answer: _Answer, event: TokenEvent) -> None:
    if event.finish is FinishReason.ERROR:
        raise EngineError(event.error or EngineErrorCode.INTERNAL, event.message)
    delta = answer.processor.feed(event)
    answer.text += delta.text
    answer.token_ids += event.token_ids[: delta.num_tokens]
    answer.tokens += delta.tokens
    answer.num_cached_tokens = max(answer.num_cached_tokens, event.num_cached_tokens)
    answer.finish = delta.finish


def _output(answer: _Answer) -> RequestOutput:
    assert answer.finish is not None
    completion = CompletionOutput(
        text=answer.text,
        token_ids=answer.token_ids,
        logprobs=None if answer.request.sampling.logprobs is None else answer.tokens,
        finish_reason=answer.finish,
    )
    return RequestOutput(
        prompt_token_ids=answer.request.token_ids,
        outputs=[completion],
        num_cached_tokens=answer.num_cached_tokens,
    )


def _processor(request: Generate, tokenizer: Tokenizer) -> OutputProcessor:
    return OutputProcessor(tokenizer, stop=request.sampling.stop, logprobs=request.sampling.logprobs)


def _progress_bar(*, enabled: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)
