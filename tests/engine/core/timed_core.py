"""A core whose steps take a time that depends on their tokens, on a clock of its own."""

from dataclasses import dataclass, field
from itertools import pairwise

from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import CompletedStep, InFlightStep, Sample, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.protocol.messages import Generate, TokenEvent
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import generate

DECODE_SECONDS = 0.025
PROMPT_TOKEN_SECONDS = 0.0005
MEDIA_TOKEN_SECONDS = 0.001
GPU_DECODE_SECONDS = 0.0016
LAUNCH_SECONDS = 0.005
"""330 launches of 15 µs."""


@dataclass(kw_only=True)
class TimedRunner:
    """Advances its own clock by the time that a machine would take, and samples any token."""

    decode_seconds: float = DECODE_SECONDS
    now: float = 0.0
    plans: list[StepPlan] = field(default_factory=list[StepPlan])
    num_tokens: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def launch(self, plan: StepPlan) -> InFlightStep:
        self.plans.append(plan)
        self.num_tokens |= {span.key: span.num_tokens for start in plan.started for span in start.spans}
        num_media_tokens = sum(self.num_tokens[item.key] for item in plan.encode)
        work_seconds = plan.num_tokens * PROMPT_TOKEN_SECONDS + num_media_tokens * MEDIA_TOKEN_SECONDS
        # Weights are read while the first tokens are computed.
        self.now += max(self.decode_seconds, self.decode_seconds / 2 + work_seconds)
        samples = {chunk.sequence_id: Sample(token_id=1) for chunk in plan.chunks if chunk.samples}
        return CompletedStep(StepResult(samples=samples, encode_seconds=num_media_tokens * MEDIA_TOKEN_SECONDS))


@dataclass(kw_only=True)
class TimedGpuRunner(TimedRunner):
    """Acts like a GPU with a model of 2 B parameters: steps are launched ahead, and only decodes are replayed."""

    decode_seconds: float = GPU_DECODE_SECONDS
    prompt_token_seconds: float = 0.000_006
    replay_seconds: float = 0.0003
    """Time of the host for a step that only decodes."""
    launch_seconds: float = LAUNCH_SECONDS
    """Time of the host for any other step."""
    device_free_at: float = 0.0

    def launch(self, plan: StepPlan) -> "TimedGpuStep":
        self.plans.append(plan)
        num_prompt_tokens = sum(len(chunk.token_ids) for chunk in plan.chunks if len(chunk.token_ids) > 1)
        begun = self.now
        self.now += self.launch_seconds if num_prompt_tokens else self.replay_seconds
        work_seconds = max(self.decode_seconds, self.decode_seconds / 2 + num_prompt_tokens * self.prompt_token_seconds)
        # Kernels run while later ones are launched.
        self.device_free_at = max(max(self.device_free_at, begun) + work_seconds, self.now)
        samples = {chunk.sequence_id: Sample(token_id=1) for chunk in plan.chunks if chunk.samples}
        return TimedGpuStep(runner=self, done_at=self.device_free_at, step_result=StepResult(samples=samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedGpuStep:
    """A launched step. Waiting for it advances the clock."""

    runner: TimedGpuRunner
    done_at: float
    step_result: StepResult

    def result(self) -> StepResult:
        self.runner.now = max(self.runner.now, self.done_at)
        return self.step_result


class TimedCore:
    """A core on a timed runner, with the times of each request's tokens."""

    def __init__(
        self,
        *,
        max_slowdown: float,
        max_sequences: int = 64,
        num_sliding_blocks: int = 0,
        window: int = 0,
        max_waiting: int = 1000,
        runner: TimedRunner | None = None,
    ) -> None:
        self.runner = runner or TimedRunner()
        self.core = Core(
            runner=self.runner,
            model=ModelSpec(vocab_size=8, encoder_row_width=2, eos_token_ids=()),
            limits=SchedulerLimits(
                num_blocks=10_000,
                block_size=16,
                max_model_len=8000,
                max_batch_tokens=2048,
                max_sequences=max_sequences,
                encoder_bytes_per_row=1,
                encoder_cache_bytes=8000,
                prefix_caching=False,
                max_decode_slowdown=max_slowdown,
                uses_gpu=isinstance(self.runner, TimedGpuRunner),
                num_sliding_blocks=num_sliding_blocks,
                window=window,
            ),
            max_waiting=max_waiting,
            async_scheduling=isinstance(self.runner, TimedGpuRunner),
            clock=lambda: self.runner.now,
        )
        self.times: dict[str, list[float]] = {}

    def submit(self, request: Generate) -> None:
        self.times[request.request_id] = [self.runner.now]
        self.core.submit(request)

    def run(self, num_steps: int) -> list[TokenEvent]:
        """Returns what the steps brought."""
        return [event for _ in range(num_steps) for event in self._step()]

    def _step(self) -> list[TokenEvent]:
        events = self.core.step().events
        for event in events:
            self.times[event.request_id].append(self.runner.now)
        return events

    def run_until_first_token(self, name: str) -> float:
        """Returns the seconds from the request to its first token."""
        while len(self.times[name]) < 2:
            self.run(1)
        return self.times[name][1] - self.times[name][0]

    def gaps(self, name: str) -> list[float]:
        """Returns the seconds between the tokens of a request."""
        times = self.times[name][1:]
        return [later - earlier for earlier, later in pairwise(times)]


def text(name: str, num_tokens: int, max_tokens: int = 10_000, *, client: str = "") -> Generate:
    return generate(name, [1] * num_tokens, sampling=SamplingParams(max_tokens=max_tokens), client=client)
