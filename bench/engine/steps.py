"""The engine's steps against the machine's limits, measured in the same run.

    python -m bench.engine.steps CHECKPOINT
    python -m bench.engine.steps CHECKPOINT --levels --quantization none int8 --contexts 512
    python -m bench.engine.steps CHECKPOINT --backend torch --quantization int8

A step must read the decoder's weights and its sequences' KV cache, and compute its matrix products. The longer of the
two at the machine's own rates is its least time: the table says what share of the measured time that is. Rates are
those of bench.engine.limits; the arithmetic rate is that of the level's fastest units for floats, or for 8-bit integers
where the native kernels multiply quantized weights. With int8 weights they multiply activations of 15 bits, so that at
most half of VNNI's rate is in reach. Decode steps are mostly bound by reading, prefill and image encoding by
arithmetic.

Steps are the core's own, scheduling and sampling included, without a server: decode BATCH x CONTEXT, the same at
temperature 1, the same with a prompt of 100 or 200 more tokens, a prompt alone, and new images: the time of the vision
encoder. Times are medians.
"""

import argparse
import gc
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from bench.engine.costs import stored_bytes
from bench.engine.step_costs import Measured, StepWork, Variant, measured, summary, text_table
from bench.engine.timed_engine import TimedEngine
from glimpse.engine.benchmark.limits import best, measure_limits
from glimpse.engine.benchmark.units.library import unit_levels
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Backend, CpuLevel, DType, EngineConfig, Quantization
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core
from glimpse.engine.worker.native.library import Level, choose_level
from glimpse.native.processors import usable_processors

_BATCHES = (1, 4, 16)
_CONTEXTS = (512, 2048)
_PREFILLS = (512, 2048)
_MIXED = (100, 200)
"""Prompt tokens in a step with decodes."""
_IMAGES = ((448, 448), (1036, 756))
"""Width and height in pixels; the second is what 1024 x 768 is resized to."""
Kind = Literal["decode", "mixed", "temperature", "prefill", "image"]
_NO_SLOWDOWN_BOUND = 1e6
"""Steps with decodes take whole prompts."""


def measure(
    timed: TimedEngine,
    work: StepWork,
    *,
    max_batch: int,
    kinds: Collection[Kind] = get_args(Kind),
    contexts: Sequence[int] = _CONTEXTS,
    prefills: Sequence[int] = _PREFILLS,
) -> Iterator[Measured]:
    """Measures steps of these kinds, with decode batches up to `max_batch`."""
    batches = [batch for batch in _BATCHES if batch <= max_batch]
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
        for num_tokens in prefills:
            yield measured(f"prefill {num_tokens}", timed.prefill(num_tokens), work.prefill(num_tokens))
    if "image" in kinds:
        for size in _IMAGES:
            yield measured(f"image {size[0]} x {size[1]}", timed.image(*size), work.image(*size))


def _measure_mixed(timed: TimedEngine, work: StepWork, batch: int, context: int) -> Iterator[Measured]:
    for num_tokens in _MIXED:
        name = f"decode {batch} x {context} + {num_tokens} prompt tokens"
        yield measured(name, timed.mixed(num_tokens), work.mixed(batch, context, num_tokens))


def step_work(engine: LoadedEngine) -> StepWork:
    """Returns the least work of an engine's steps."""
    value_bytes = {"float32": 4, "bfloat16": 2}[engine.ready.dtype]
    is_native = engine.ready.backend == "native"

    def weight_bytes(num_tokens: int) -> float:
        return stored_bytes(
            engine.model.text,
            quantization=engine.ready.quantization,
            value_bytes=value_bytes,
            scale_bytes=4 if is_native else value_bytes,
            int8_head=is_native and engine.ready.quantization in ("int8", "int4"),
            num_tokens=num_tokens,
        )

    return StepWork(model=engine.model, weight_bytes=weight_bytes, value_bytes=value_bytes)


def measure_variant(arguments: argparse.Namespace, level: CpuLevel, quantization: Quantization) -> Variant:
    """Loads an engine and measures its steps, and the limits beside each of them.

    Raises:
        CheckpointError: the engine cannot run in this way on this machine.
    """
    engine = load_core(
        EngineConfig(
            model_path=str(arguments.checkpoint),
            max_batch_tokens=max(_BATCHES[-1] + _MIXED[-1], *arguments.prefills),
            max_decode_slowdown=_NO_SLOWDOWN_BOUND,
            prefix_caching=False,
            speculative="off",  # each step has one token of each sequence
            num_threads=arguments.threads,
            dtype=arguments.dtype,
            backend=arguments.backend,
            cpu_level=level,
            quantization=quantization,
        ),
        on_progress=lambda _stage, _fraction: None,
    )
    is_native = engine.ready.backend == "native"
    if level != "auto" and not is_native:
        raise CheckpointError(f"--levels {level}: the engine computes with the backend {engine.ready.backend}")
    unit_level = choose_level(level) if is_native else None
    name = unit_level.option if unit_level else engine.ready.backend
    quantized = engine.ready.quantization  # of a quantized checkpoint or of `auto`, not always what was requested
    weights = engine.ready.dtype if quantized == "none" else quantized
    timed = TimedEngine(engine.core, engine.model, repeats=arguments.repeats)
    integers = is_native and quantized != "none"
    limiting_level = unit_level
    if unit_level is not None and engine.ready.dtype == "float32":
        limiting_level = min(unit_level, Level.AVX512_VNNI)  # the levels above it multiply float32 as it does
    limits_now = partial(measure_limits, num_threads=arguments.threads, level=limiting_level, integers=integers)
    limits, steps = limits_now(), list[Measured]()
    for each in measure(
        timed,
        step_work(engine),
        max_batch=arguments.max_batch,
        kinds=arguments.kinds,
        contexts=arguments.contexts,
        prefills=arguments.prefills,
    ):
        print(f"{name}, {weights}: {each.name}: {each.milliseconds:.1f} ms", file=sys.stderr)
        steps.append(each)
        # Measured repeatedly: on a busy machine the first measurement may be low.
        limits = best(limits, limits_now(repeats=1))
    return Variant(level=name, weights=weights, limits=limits, steps=steps)


def measure_all(arguments: argparse.Namespace) -> Iterator[Variant]:
    """Measures each level with each quantization, one engine at a time."""
    levels: list[CpuLevel] = ["auto"] if arguments.levels is None else arguments.levels or machine_options()
    quantizations: list[Quantization] = arguments.quantization
    for level, quantization in product(levels, quantizations):
        yield measure_variant(arguments, level, quantization)
        gc.collect()  # frees the engine's memory before the next one loads


def machine_options() -> list[CpuLevel]:
    """Returns the levels of this machine as values of the engine's option; "auto" alone if it has none."""
    options = [level.option for level in unit_levels()]
    return [option for option in get_args(CpuLevel) if option in options] or ["auto"]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--repeats", type=int, default=9, help="of each step (default: 9)")
    parser.add_argument("--max-batch", type=int, default=max(_BATCHES), help="of decodes (default: 16)")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=_CONTEXTS, help="tokens of decoding sequences (default: 512 2048)"
    )
    parser.add_argument(
        "--prefills", type=int, nargs="+", default=_PREFILLS, help="tokens of prompts (default: 512 2048)"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=get_args(Kind),
        default=get_args(Kind),
        metavar="KIND",
        help=f"of steps: {', '.join(get_args(Kind))} (default: all)",
    )
    parser.add_argument("--threads", type=int, default=len(usable_processors()), help="(default: all)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument(
        "--levels",
        nargs="*",
        choices=get_args(CpuLevel),
        metavar="LEVEL",
        help="instruction set levels of the native kernels to measure, one after another: "
        f"{', '.join(get_args(CpuLevel))}; without a value all of this machine (default: auto, the fastest)",
    )
    parser.add_argument("--dtype", choices=get_args(DType), default="auto")
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument(
        "--quantization",
        nargs="+",
        choices=get_args(Quantization),
        default=["none"],
        help="of the weights; several are measured one after another (default: none)",
    )
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    variants: list[Variant] = []
    try:
        for variant in measure_all(arguments):
            variants.append(variant)
            print(f"{text_table(variant)}\n", flush=True)
    except CheckpointError as error:
        sys.exit(f"bench.engine.steps: {error}")
    if len(variants) > 1:
        print(summary(variants))
    if arguments.json:
        arguments.json.write_text(json.dumps([_document(each) for each in variants], indent=2) + "\n", encoding="utf-8")


def _document(variant: Variant) -> dict[str, Any]:
    steps = [asdict(each) | {"share": each.share(variant.limits)} for each in variant.steps]
    return asdict(variant) | {"steps": steps}


if __name__ == "__main__":
    main()
