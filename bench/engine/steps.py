"""The engine's steps against the machine's limits, measured in the same run.

    python -m bench.engine.steps CHECKPOINT
    python -m bench.engine.steps CHECKPOINT --backend torch --quantization int8

A decode step reads the decoder's weights and its sequences' KV cache, so it is compared with the memory read rate.
Prefill and image encoding are compared with the peak of the units that multiply bfloat16 weights (bench.engine.limits).
Steps are the core's own, scheduling and sampling included, without a server. The table shows the shortest and the
median.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from bench.engine.costs import decode_bytes, prefill_flops, stored_bytes, vision_flops
from bench.engine.limits import Limits, best, measure_limits
from bench.figures import significant, table
from glimpse.engine.config import Backend, EngineConfig, Quantization
from glimpse.engine.loading.load_engine import load_core
from glimpse.engine.model_config import ModelConfig
from glimpse.engine.plan import MediaSpan
from glimpse.engine.protocol import Generate, MediaInput
from glimpse.engine.sampling_params import SamplingParams
from glimpse.engine.scheduling.core import Core
from glimpse.media.kind import MediaKind

_MOST_TOKENS = 1024
"""Length of an answer; it is cancelled after the measurement."""
_BATCHES = (1, 4, 16)
_CONTEXTS = (512, 2048)
_PREFILLS = (512, 2048)
_SIDE = 448


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one kind of step."""

    name: str
    milliseconds: float
    """Median."""
    least_milliseconds: float
    work: float
    """Bytes to read, or operations of bfloat16 products."""
    unit: Literal["bytes", "flops"]

    @property
    def rate(self) -> float:
        """Bytes or operations per second, by the median."""
        return 1000 * self.work / self.milliseconds

    def share(self, limits: Limits) -> float:
        """Share of the machine's rate."""
        return self.rate / (limits.read_bytes_per_second if self.unit == "bytes" else limits.flops_per_second)


class Steps:
    """An engine whose single steps are timed."""

    def __init__(self, core: Core, model: ModelConfig, *, repeats: int) -> None:
        self._core = core
        self._model = model
        self._repeats = repeats
        self._draw = random.Random(0)
        self._num_requests = 0

    def decode(self, batches: Sequence[int], context: int) -> Iterator[tuple[int, list[float]]]:
        """Yields each batch size with the seconds of its decode steps.

        Args:
            batches: ascending; each batch extends the previous one.
            context: tokens of a prompt; generated tokens add little.
        """
        num_running = 0
        for batch in batches:
            for _ in range(batch - num_running):
                self._submit(self._tokens(context), max_tokens=_MOST_TOKENS)
            while self._core.step().stats.num_generated_tokens < batch:
                pass
            yield batch, [self._timed_step() for _ in range(self._repeats)]
            num_running = batch
        self._core.shutdown()
        self._core.step()

    def prefill(self, num_tokens: int) -> list[float]:
        """Returns the seconds from the prompt to its first token."""
        return [self._first_token(self._tokens(num_tokens), []) for _ in range(1 + self._repeats)][1:]

    def image(self) -> list[float]:
        """Returns the seconds that a new image adds to a prompt of the same length."""
        vision = self._model.vision
        side = _SIDE // vision.patch_size
        num_tokens = (side // vision.spatial_merge_size) ** 2
        prompt = [self._model.placeholder_ids["image"]] * num_tokens + self._tokens(1)
        seen = [self._first_token(prompt, [self._image(num_tokens, side)]) for _ in range(1 + self._repeats)][1:]
        text = statistics.median(self.prefill(num_tokens + 1))
        return [seconds - text for seconds in seen]

    def _first_token(self, token_ids: list[int], media: list[MediaInput]) -> float:
        self._submit(token_ids, max_tokens=1, media=media)
        begun = time.perf_counter()
        while self._core.has_work:
            self._core.step()
        return time.perf_counter() - begun

    def _timed_step(self) -> float:
        begun = time.perf_counter()
        self._core.step()
        return time.perf_counter() - begun

    def _submit(self, token_ids: list[int], *, max_tokens: int, media: list[MediaInput] | None = None) -> None:
        self._num_requests += 1
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request_id = str(self._num_requests)
        self._core.submit(Generate(request_id=request_id, token_ids=token_ids, media=media or [], sampling=sampling))

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(256) for _ in range(count)]

    def _image(self, num_tokens: int, side: int) -> MediaInput:
        pixels = self._draw.randbytes(3 * (side * self._model.vision.patch_size) ** 2)
        span = MediaSpan(
            kind=MediaKind.IMAGE,
            start=0,
            num_tokens=num_tokens,
            key=self._draw.randbytes(32),
            grid_thw=(1, side, side),
        )
        return MediaInput(span=span, content=memoryview(pixels))


def measure(steps: Steps, model: ModelConfig, weight_bytes: float, *, max_batch: int) -> Iterator[Measured]:
    """Measures every kind of step, with decode batches up to `max_batch`."""
    batches = [batch for batch in _BATCHES if batch <= max_batch]
    for context in _CONTEXTS:
        for batch, seconds in steps.decode(batches, context):
            work = decode_bytes(model.text, weight_bytes, batch=batch, context=context)
            yield _measured(f"decode {batch} x {context}", seconds, work, "bytes")
    for num_tokens in _PREFILLS:
        work = prefill_flops(model.text, num_tokens)
        yield _measured(f"prefill {num_tokens}", steps.prefill(num_tokens), work, "flops")
    side = _SIDE // model.vision.patch_size
    yield _measured(f"image {_SIDE} x {_SIDE}", steps.image(), vision_flops(model.vision, side**2), "flops")


def _measured(name: str, seconds: list[float], work: float, unit: Literal["bytes", "flops"]) -> Measured:
    return Measured(
        name=name,
        milliseconds=1000 * statistics.median(seconds),
        least_milliseconds=1000 * min(seconds),
        work=work,
        unit=unit,
    )


def text_table(measured: Sequence[Measured], limits: Limits) -> str:
    """Formats the table."""
    header = ["step", "median ms", "least ms", "rate", "of the limit"]
    return f"limits of this machine: {limits}\n\n{table(header, [_row(each, limits) for each in measured])}"


def _row(each: Measured, limits: Limits) -> list[str]:
    scale, unit = (1e9, "GB/s") if each.unit == "bytes" else (1e12, "TFLOP/s")
    times = (f"{each.milliseconds:.2f}", f"{each.least_milliseconds:.2f}")
    return [each.name, *times, f"{significant(each.rate / scale)} {unit}", f"{100 * each.share(limits):.0f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--repeats", type=int, default=9, help="of each step (default: 9)")
    parser.add_argument("--max-batch", type=int, default=max(_BATCHES), help="of decodes (default: 16)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    arguments = parser.parse_args()
    limits = measure_limits(num_threads=arguments.threads)
    config = EngineConfig(
        model_path=str(arguments.checkpoint),
        max_batch_tokens=max(_PREFILLS),
        prefix_caching=False,
        num_threads=arguments.threads,
        backend=arguments.backend,
        quantization=arguments.quantization,
    )
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    weight_bytes = stored_bytes(engine.model.text, quantization=arguments.quantization)
    steps = Steps(engine.core, engine.model, repeats=arguments.repeats)
    measured: list[Measured] = []
    for each in measure(steps, engine.model, weight_bytes, max_batch=arguments.max_batch):
        print(f"{each.name}: {each.milliseconds:.1f} ms", file=sys.stderr)
        measured.append(each)
        # Measured repeatedly: on a busy machine the first measurement may be low.
        limits = best(limits, measure_limits(num_threads=arguments.threads, repeats=2))
    print(text_table(measured, limits))
    if arguments.json:
        document = {
            "limits": asdict(limits),
            "steps": [asdict(each) | {"share": each.share(limits)} for each in measured],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
