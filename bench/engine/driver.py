"""Drives an engine's core in this process with fixed concurrency."""

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.core import Core
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import FinishReason, Generate, MediaInput
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.media.kind import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt and the length of its answer."""

    token_ids: tuple[int, ...]
    media: tuple[MediaInput, ...] = ()
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The results of some questions."""

    seconds: float
    answers: list[list[int]]
    """Token ids, in order of the questions."""

    @property
    def output_tokens_per_second(self) -> float:
        return sum(map(len, self.answers)) / self.seconds

    @property
    def requests_per_second(self) -> float:
        return len(self.answers) / self.seconds


class Driver:
    """Submits greedy requests of fixed answer length to a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._num_asked = 0

    def ask(self, questions: Sequence[Question], *, concurrency: int) -> Run:
        """Runs all questions with fixed concurrency.

        Raises:
            RuntimeError: a request failed.
        """
        waiting = deque(enumerate(questions))
        asked: dict[str, int] = {}
        answers: list[list[int]] = [[] for _ in questions]
        begun = time.perf_counter()
        while waiting or asked:
            while waiting and len(asked) < concurrency:
                index, question = waiting.popleft()
                asked[self._submit(question)] = index
            for event in self._core.step().events:
                answers[asked[event.request_id]] += event.token_ids
                if event.finish is FinishReason.ERROR:
                    raise RuntimeError(event.message)
                if event.finish is not None:
                    del asked[event.request_id]
        return Run(seconds=time.perf_counter() - begun, answers=answers)

    def begin(self, questions: Sequence[Question]) -> None:
        """Submits questions without waiting; the caller steps the core."""
        for question in questions:
            self._submit(question)

    def _submit(self, question: Question) -> str:
        self._num_asked += 1
        request_id = str(self._num_asked)
        sampling = SamplingParams(temperature=0.0, max_tokens=question.output_tokens, ignore_eos=True)
        token_ids, media = list(question.token_ids), list(question.media)
        self._core.submit(Generate(request_id=request_id, token_ids=token_ids, media=media, sampling=sampling))
        return request_id


def text(draw: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Returns random token ids below 256, which are single bytes in every byte-level vocabulary."""
    return tuple(draw.randrange(256) for _ in range(num_tokens))


def image(draw: random.Random, model: ModelConfig, *, start: int, side: int) -> tuple[tuple[int, ...], MediaInput]:
    """Returns the placeholder tokens of a noise image that begins at `start`, and the image.

    Args:
        draw: makes its pixels.
        model: the configuration that determines its placeholder.
        start: index in the prompt.
        side: side in tokens; the image takes its square.
    """
    vision, num_tokens = model.vision, side * side
    patches = side * vision.spatial_merge_size
    span = MediaSpan(
        kind=MediaKind.IMAGE,
        start=start,
        num_tokens=num_tokens,
        key=draw.randbytes(32),
        grid=(1, patches, patches),
    )
    medium = MediaInput(
        span=span,
        content=memoryview(draw.randbytes(3 * (patches * vision.patch_size) ** 2)),
    )
    return (model.placeholder_ids["image"],) * num_tokens, medium
