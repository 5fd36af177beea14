"""The engine's steps against the machine's limits, measured in the same run.

A step must read the decoder's weights and its sequences' KV cache, and compute its matrix products. The longer of the
two at the machine's own rates is its least time, of which the measured time is more. The arithmetic rate is that of the
level's fastest units for floats, or for 8-bit integers where the native kernels multiply quantized weights. With int8
weights they multiply activations of 15 bits, so that at most half of VNNI's rate is in reach.

Steps are the core's own, scheduling and sampling included, without a server. Times are medians.

`python -m glimpse.engine.benchmark.steps CHECKPOINT` writes a list of `StepShare` as JSON, for `glimpse bench`.
"""

import gc
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal, get_args

import msgspec

from glimpse.engine.benchmark.costs import stored_bytes
from glimpse.engine.benchmark.limits import best, engine_threads, measure_limits
from glimpse.engine.benchmark.messages import StepShare
from glimpse.engine.benchmark.step_costs import Measured, ModelWork, Variant, measured
from glimpse.engine.benchmark.timed_engine import TimedEngine
from glimpse.engine.benchmark.units.library import unit_levels
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import CpuLevel, EngineConfig, Quantization
from glimpse.engine.worker.loading.check_messages import CheckRequest
from glimpse.engine.worker.loading.check_serving import check_serving
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core
from glimpse.engine.worker.native.library import Level, choose_level
from glimpse.interrupts import exit_on_interrupt

BATCHES = (1, 4, 16)
MIXED = (100, 200)
"""Prompt tokens in a step with decodes."""
_IMAGES = ((448, 448), (1036, 756))
"""Width and height in pixels; the second is what 1024 x 768 is resized to."""
Kind = Literal["decode", "mixed", "temperature", "prefill", "image"]
_NO_SLOWDOWN_BOUND = 1e6
"""Steps with decodes take whole prompts."""
_MIXED_TYPES = ("gguf", "compressed-tensors")
"""Methods of checkpoints whose matrices have types of their own."""
_BRIEF_QUANTIZATIONS: tuple[Quantization, ...] = ("none", "int8", "w8a8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The steps to measure."""

    kinds: Collection[Kind] = get_args(Kind)
    max_batch: int = BATCHES[-1]
    """Largest batch of decodes."""
    contexts: Sequence[int] = (512, 2048)
    """Tokens of decoding sequences."""
    prefills: Sequence[int] = (512, 2048)
    """Tokens of prompts."""
    repeats: int = 9
    """Times that each step is timed."""


_BRIEF = Kinds(kinds=("decode", "prefill"), max_batch=1, contexts=(512,), prefills=(512,), repeats=5)


def measure(timed: TimedEngine, work: ModelWork, steps: Kinds) -> Iterator[Measured]:
    """Measures steps of these kinds."""
    kinds, contexts = steps.kinds, steps.contexts
    batches = [batch for batch in BATCHES if batch <= steps.max_batch]
    first, most = contexts[0], batches[-1]
    if "decode" in kinds:
        for context in contexts:
            for batch in batches:
                timed.run(batch, context)
                yield measured(f"decode {batch} x {context}", timed.decode(), work.decode(batch, context))
            timed.end()
    if "mixed" in kinds:
        timed.run(most, first)
        yield from _measure_mixed(timed, work, most, first)
        timed.end()
    if "temperature" in kinds:
        timed.run(most, first, temperature=1.0)
        yield measured(f"decode {most} x {first}, temperature 1", timed.decode(), work.decode(most, first))
        timed.end()
    if "prefill" in kinds:
        for num_tokens in steps.prefills:
            yield measured(f"prefill {num_tokens}", timed.prefill(num_tokens), work.prefill(num_tokens))
    if "image" in kinds:
        for size in _IMAGES:
            yield measured(f"image {size[0]} x {size[1]}", timed.image(*size), work.image(*size))


def _measure_mixed(timed: TimedEngine, work: ModelWork, batch: int, context: int) -> Iterator[Measured]:
    for num_tokens in MIXED:
        name = f"decode {batch} x {context} + {num_tokens} prompt tokens"
        yield measured(name, timed.mixed(num_tokens), work.mixed(batch, context, num_tokens))


def step_work(engine: LoadedEngine) -> ModelWork:
    """Returns the least work of an engine's steps."""
    value_bytes = {"float32": 4, "bfloat16": 2}[engine.ready.dtype]
    is_native = engine.ready.backend == "native"

    def weight_bytes(num_tokens: int) -> float:
        return stored_bytes(
            engine.model.text,
            quantization=engine.ready.quantization,
            value_bytes=value_bytes,
            scale_bytes=4 if is_native else value_bytes,
            int8_head=is_native and engine.ready.quantization in ("int8", "w8a8", "int4"),
            num_tokens=num_tokens,
        )

    return ModelWork(model=engine.model, weight_bytes=weight_bytes, value_bytes=value_bytes)


def measure_variant(config: EngineConfig, steps: Kinds) -> Variant:
    """Loads an engine and measures its steps, and the limits beside each of them.

    Raises:
        CheckpointError: the engine cannot run in this way on this machine.
    """
    level, num_threads = config.cpu_level, engine_threads() if config.num_threads is None else config.num_threads
    engine = load_core(
        replace(
            config,
            max_batch_tokens=max(BATCHES[-1] + MIXED[-1], *steps.prefills),
            max_decode_slowdown=_NO_SLOWDOWN_BOUND,
            prefix_caching=False,
            speculative="off",  # each step has one token of each sequence
            num_threads=num_threads,
        ),
        on_progress=lambda _stage, _fraction: None,
    )
    is_native = engine.ready.backend == "native"
    if level != "auto" and not is_native:
        raise CheckpointError(f"level {level}: the engine computes with the backend {engine.ready.backend}")
    unit_level = choose_level(level) if is_native else None
    name = unit_level.option if unit_level else engine.ready.backend
    quantized = engine.ready.quantization  # of a quantized checkpoint or of `auto`, not always what was requested
    weights = engine.ready.dtype if quantized == "none" else quantized
    integers = is_native and quantized != "none"
    limiting_level = unit_level
    if unit_level is not None and engine.ready.dtype == "float32":
        limiting_level = min(unit_level, Level.AVX512_VNNI)  # the levels above it multiply float32 as it does
    limits_now = partial(measure_limits, num_threads=num_threads, level=limiting_level, integers=integers)
    work = step_work(engine)
    if quantized.startswith(_MIXED_TYPES):
        counted = _counted_bytes(config)
        work = replace(work, weight_bytes=lambda _num_tokens: counted)
    timed, limits, done = TimedEngine(engine.core, engine.model, repeats=steps.repeats), limits_now(), list[Measured]()
    for each in measure(timed, work, steps):
        print(f"{name}, {weights}: {each.name}: {each.milliseconds:.1f} ms", file=sys.stderr)
        done.append(each)
        # Measured repeatedly: on a busy machine the first measurement may be low.
        limits = best(limits, limits_now(repeats=1))
    return Variant(level=name, weights=weights, limits=limits, steps=done)


def _counted_bytes(config: EngineConfig) -> float:
    """Returns the bytes of weights that a step of one token reads, counted matrix by matrix as `glimpse check` does."""
    decoding = check_serving(
        CheckRequest(config=config, tensors=None), on_progress=lambda _stage, _fraction: None
    ).decoding
    if decoding is None:
        raise CheckpointError(f"{config.model_path}: its weights cannot be counted")
    return decoding.weight_bytes


def machine_options() -> list[CpuLevel]:
    """Returns the levels of this machine as values of the engine's option; "auto" alone if it has none."""
    options = [level.option for level in unit_levels()]
    return [option for option in get_args(CpuLevel) if option in options] or ["auto"]


def main() -> None:
    """Writes the shares to standard output: each level of this machine, each type of weights that the model can have.

    What cannot be measured is said on standard error.
    """
    exit_on_interrupt()
    shares: list[StepShare] = []
    for level, quantization in product(machine_options(), _BRIEF_QUANTIZATIONS):
        config = EngineConfig(model_path=sys.argv[1], cpu_level=level, quantization=quantization)
        try:
            shares += _shares(measure_variant(config, _BRIEF))
        except CheckpointError as error:
            print(f"{level}, {quantization}: {error}", file=sys.stderr)
        gc.collect()  # frees the engine's memory before the next one loads
    sys.stdout.buffer.write(msgspec.json.encode(shares))


def _shares(variant: Variant) -> Iterator[StepShare]:
    for each in variant.steps:
        yield StepShare(
            level=variant.level,
            weights=variant.weights,
            step=each.name,
            milliseconds=each.milliseconds,
            share=each.share(variant.limits),
        )


if __name__ == "__main__":
    main()
