"""What a decode step costs on the host, whatever the device computes meanwhile.

    python -m bench.engine.host_time

Scheduler, runner, samplers, events and their message to the front end are the engine's own; the model computes nothing,
and every step has the same logits. "ahead" is the engine on a GPU: tokens are sampled on the device, and each step is
launched before the one before it has ended. A function that launches nothing replaces the kernels that draw tokens.
"shortlists" draws with torch, as where these kernels cannot be compiled, and counts the arithmetic, which a GPU does.
"in turn" is the engine on a CPU. Tensors are on the CPU in all, so copies to a device and launches are not counted.
"""

import argparse
import random
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import torch

from bench.figures import table
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Vocabulary
from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.plan import InFlightStep, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.protocol.transport import Channel
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.models.decoder import text_positions
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.batch import Batch, SequenceLayout
from glimpse.engine.worker.tensors.draws import DrawParams, DrawTokens
from glimpse.engine.worker.tensors.kv_cache import CacheShape

_BATCHES = (1, 16, 64, 256)
_BLOCK_SIZE = 32
_VOCAB_SIZE = 256
_NUM_WARM_STEPS = 20
_CPU = torch.device("cpu")


class IdleModel:
    """A model of text without weights, and its recorded steps: nothing is computed."""

    num_scratch_blocks = 0
    adapters = Adapters(0)
    mtp = None

    def __init__(self, max_sequences: int) -> None:
        self._logits = torch.zeros(max_sequences, _VOCAB_SIZE)

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns the layout of a prompt of text alone, whatever its spans."""
        return SequenceLayout(prompt_positions=text_positions(0, num_tokens), delta=0, spans=tuple(spans))

    def prepare(self) -> bool:
        """There is nothing to record."""
        return False

    def compute(self, batch: Batch) -> torch.Tensor:
        """Returns logits, float32 [sampled rows, vocab_size]."""
        return self._logits[: len(batch.sampled_rows)]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step in flight whose result is timed."""

    step: InFlightStep
    runner: "TimedRunner"

    def result(self) -> StepResult:
        begun = time.perf_counter()
        result = self.step.result()
        self.runner.result_seconds = time.perf_counter() - begun
        return result


class TimedRunner:
    """Notes how long the last launch and the last result took."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.launch_seconds = 0.0
        self.result_seconds = 0.0

    def launch(self, plan: StepPlan) -> InFlightStep:
        begun = time.perf_counter()
        step = self._runner.launch(plan)
        self.launch_seconds = time.perf_counter() - begun
        return TimedStep(step, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Where the time of one step went, in seconds."""

    scheduling: float
    """Planning, and turning results into events."""
    launch: float
    """Packing the batch and beginning to sample."""
    result: float
    """Reading the sampled tokens; in turn, sampling them."""
    message: float
    """Encoding the events and writing them to the front end's socket."""

    @property
    def total(self) -> float:
        return self.scheduling + self.launch + self.result + self.message


def draw_nothing(_logits: torch.Tensor, _params: DrawParams, token_ids: torch.Tensor) -> None:
    """Replaces the kernels that draw tokens: every token is 0."""
    token_ids.zero_()


class IdleEngine:
    """A core whose model computes nothing, and the connection to a front end."""

    def __init__(
        self, num_sequences: int, *, ahead: bool, context: int, num_steps: int, draw_tokens: DrawTokens | None = None
    ) -> None:
        most_tokens = context + num_sequences + num_steps + _NUM_WARM_STEPS + 2
        num_blocks = num_sequences * (-(-most_tokens // _BLOCK_SIZE))
        model = IdleModel(num_sequences)
        self._runner = TimedRunner(
            ModelRunner(
                model=cast(Model, model),
                cache=CacheShape(num_kv_heads=1, head_dim=1).allocate(num_blocks, _BLOCK_SIZE, torch.float32, _CPU),
                eos_token_ids=(),
                device=_CPU,
                dtype=torch.float32,
                grammars=GrammarCompiler(Vocabulary(tokens=[bytes([each]) for each in range(256)], special_ids=())),
                samples_on_device=ahead,
                recorded=model,
                draw_tokens=draw_tokens,
            )
        )
        self._core = Core(
            runner=self._runner,
            model=ModelSpec(vocab_size=_VOCAB_SIZE, encoder_row_width=1, eos_token_ids=()),
            limits=SchedulerLimits(
                num_blocks=num_blocks,
                block_size=_BLOCK_SIZE,
                max_model_len=most_tokens,
                max_batch_tokens=num_sequences * most_tokens,
                max_sequences=num_sequences,
                encoder_bytes_per_row=1,
                encoder_cache_bytes=0,
                prefix_caching=True,
                max_decode_slowdown=2.35,
                uses_gpu=ahead,
            ),
            max_waiting=num_sequences,
            async_scheduling=ahead,
        )
        self._engine, self._front_end = socket.socketpair()
        self._front_end.setblocking(False)
        self._channel = Channel(self._engine)

    def close(self) -> None:
        """Closes the connection."""
        self._engine.close()
        self._front_end.close()

    def submit(self, num_tokens: int, *, temperature: float, draw: random.Random) -> None:
        """Adds a request whose answer outlasts the measurement."""
        sampling = SamplingParams(temperature=temperature, top_p=0.9, max_tokens=1 << 20, ignore_eos=True, seed=0)
        token_ids = [draw.randrange(_VOCAB_SIZE) for _ in range(num_tokens)]
        self._core.submit(Generate(request_id=f"{draw.getrandbits(128):032x}", token_ids=token_ids, sampling=sampling))

    def step(self) -> HostTime:
        """Executes a step and sends its events."""
        begun = time.perf_counter()
        step = self._core.step()
        stepped = time.perf_counter()
        self._channel.send(step)
        sent = time.perf_counter()
        while len(self._front_end.recv(1 << 20)) == 1 << 20:
            pass
        launch, result = self._runner.launch_seconds, self._runner.result_seconds
        scheduling = stepped - begun - launch - result
        return HostTime(scheduling=scheduling, launch=launch, result=result, message=sent - stepped)


def measure(
    num_sequences: int,
    *,
    ahead: bool,
    temperature: float,
    context: int = 512,
    num_steps: int = 400,
    draw_tokens: DrawTokens | None = None,
) -> list[HostTime]:
    """Times decode steps of sequences of about `context` tokens, whose blocks fill up in different steps."""
    draw = random.Random(0)
    with closing(
        IdleEngine(num_sequences, ahead=ahead, context=context, num_steps=num_steps, draw_tokens=draw_tokens)
    ) as engine:
        for number in range(num_sequences):
            engine.submit(context + number, temperature=temperature, draw=draw)
        for _ in range(_NUM_WARM_STEPS):
            engine.step()
        return [engine.step() for _ in range(num_steps)]


def _row(name: str, num_sequences: int, times: Sequence[HostTime]) -> list[str]:
    def microseconds(values: Sequence[float]) -> str:
        return f"{1e6 * statistics.median(values):,.0f}"

    totals = [each.total for each in times]
    return [
        name,
        str(num_sequences),
        microseconds(totals),
        f"{1e6 * min(totals):,.0f}",
        f"{1e6 * statistics.median(totals) / num_sequences:.1f}",
        microseconds([each.scheduling for each in times]),
        microseconds([each.launch for each in times]),
        microseconds([each.result for each in times]),
        microseconds([each.message for each in times]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=list(_BATCHES), help="(default: 1 16 64 256)")
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt, about (default: 512)")
    parser.add_argument("--steps", type=int, default=400, help="that are timed (default: 400)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = (
        ("ahead, greedy", True, 0.0, draw_nothing),
        ("ahead, temperature 1", True, 1.0, draw_nothing),
        ("ahead, temperature 1, shortlists", True, 1.0, None),
        ("in turn, greedy", False, 0.0, None),
    )
    rows: list[list[str]] = []
    for name, ahead, temperature, draw_tokens in kinds:
        for num_sequences in arguments.sequences:
            times = measure(
                num_sequences,
                ahead=ahead,
                temperature=temperature,
                context=arguments.context,
                num_steps=arguments.steps,
                draw_tokens=draw_tokens,
            )
            rows.append(_row(name, num_sequences, times))
            print(*rows[-1], sep="  ", file=sys.stderr)
    header = ["steps", "sequences", "median µs", "least", "a sequence", "scheduling", "launch", "result", "message"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
