"""An engine whose single steps are timed."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.core.core import Core
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import Generate, MediaInput, Step
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.media.kind import MediaKind

_MOST_TOKENS = 1024
"""Length of an answer; it is cancelled after the measurement."""


class TimedEngine:
    """Times the core's own steps, scheduling and sampling included. Every time is a list of seconds, one per repeat."""

    def __init__(
        self, core: Core, model: ModelConfig, *, repeats: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """
        Args:
            core: a core without requests and prefix cache.
            model: its model.
            repeats: times that each step is timed.
            clock: returns seconds.
        """
        self._core = core
        self._model = model
        self._repeats = repeats
        self._clock = clock
        self._draw = random.Random(0)  # noqa: S311 - no secret
        self._num_requests = 0
        self._num_running = 0

    def run(self, batch: int, context: int, *, temperature: float = 0.0, adapters: Sequence[str] = ("",)) -> None:
        """Adds sequences with prompts of `context` tokens until `batch` of them decode, with these adapters in turn."""
        for _, adapter in zip(range(batch - self._num_running), cycle(adapters), strict=False):
            self._submit(self._tokens(context), max_tokens=_MOST_TOKENS, temperature=temperature, adapter=adapter)
        self._num_running = batch
        while self._core.step().stats.num_generated_tokens < batch:
            pass

    def end(self) -> None:
        """Cancels the running sequences."""
        self._core.shutdown()
        self._core.step()
        self._num_running = 0

    def decode(self) -> list[float]:
        """Times steps of the running sequences."""
        return [self._timed_step()[0] for _ in range(self._repeats)]

    def mixed(self, num_tokens: int) -> list[float]:
        """Times steps of the running sequences that also compute a prompt of `num_tokens`.

        Raises:
            RuntimeError: a step left out a part of the prompt: `max_decode_slowdown` is too small for it, or steps are
                scheduled asynchronously.
        """
        seconds: list[float] = []
        for _ in range(1 + self._repeats):
            self._core.step()  # only decodes, which the prefill budget else asks for now and then
            self._submit(self._tokens(num_tokens), max_tokens=1)
            taken, step = self._timed_step()
            if step.stats.num_prompt_tokens != num_tokens:
                raise RuntimeError(f"a step took {step.stats.num_prompt_tokens} of {num_tokens} prompt tokens")
            seconds.append(taken)
        return seconds[1:]

    def prefill(self, num_tokens: int, *, adapter: str = "") -> list[float]:
        """Times prompts, to their first token."""
        return [self._first_token(self._tokens(num_tokens), [], adapter) for _ in range(1 + self._repeats)][1:]

    def image(self, width: int, height: int) -> list[float]:
        """Times what a new image adds to a prompt of the same length; sides in pixels."""
        vision = self._model.vision
        grid = (1, height // vision.patch_size, width // vision.patch_size)
        num_tokens = math.prod(grid) // vision.spatial_merge_size**2
        prompt = [self._model.placeholder_ids["image"]] * num_tokens + self._tokens(1)
        seen, text = list[float](), list[float]()
        for _ in range(1 + self._repeats):  # alternating, so that both meet the same disturbances
            seen.append(self._first_token(prompt, [self._image(num_tokens, grid)]))
            text.append(self._first_token(self._tokens(len(prompt)), []))
        return [seconds - statistics.median(text[1:]) for seconds in seen[1:]]

    def _first_token(self, token_ids: list[int], media: list[MediaInput], adapter: str = "") -> float:
        self._submit(token_ids, max_tokens=1, media=media, adapter=adapter)
        begun = self._clock()
        while self._core.has_work:
            self._core.step()
        return self._clock() - begun

    def _timed_step(self) -> tuple[float, Step]:
        begun = self._clock()
        step = self._core.step()
        return self._clock() - begun, step

    def _submit(
        self,
        token_ids: list[int],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        media: list[MediaInput] | None = None,
        adapter: str = "",
    ) -> None:
        self._num_requests += 1
        sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
        request_id = str(self._num_requests)
        self._core.submit(
            Generate(request_id=request_id, token_ids=token_ids, media=media or [], sampling=sampling, adapter=adapter)
        )

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(256) for _ in range(count)]

    def _image(self, num_tokens: int, grid: tuple[int, int, int]) -> MediaInput:
        pixels = self._draw.randbytes(3 * math.prod(grid) * self._model.vision.patch_size**2)
        span = MediaSpan(
            kind=MediaKind.IMAGE,
            start=0,
            num_tokens=num_tokens,
            key=self._draw.randbytes(32),
            grid=grid,
        )
        return MediaInput(span=span, content=memoryview(pixels))
