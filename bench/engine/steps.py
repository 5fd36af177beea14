"""The engine's steps against the machine's limits, measured in the same run.

    python -m bench.engine.steps CHECKPOINT
    python -m bench.engine.steps CHECKPOINT --levels --quantization none int8 --contexts 512
    python -m bench.engine.steps CHECKPOINT --backend torch --quantization int8

`glimpse.engine.benchmark.steps` measures, and says what a step is held to; `glimpse bench --levels` shows a part of it.
Steps are: decode BATCH x CONTEXT, the same at temperature 1, the same with a prompt of 100 or 200 more tokens, a prompt
alone, and new images: the time of the vision encoder. Times are medians.
"""

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, get_args

from bench.figures import significant, table
from glimpse.engine.benchmark.limits import StepLimits
from glimpse.engine.benchmark.step_costs import Measured, Variant
from glimpse.engine.benchmark.steps import Kind, Kinds, machine_options, measure_variant
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Backend, CpuLevel, DType, EngineConfig, Quantization
from glimpse.native.processors import usable_processors


def measure_all(arguments: argparse.Namespace) -> Iterator[Variant]:
    """Measures each level with each quantization, one engine at a time."""
    levels: list[CpuLevel] = ["auto"] if arguments.levels is None else arguments.levels or machine_options()
    quantizations: list[Quantization] = arguments.quantization
    steps = Kinds(
        kinds=arguments.kinds,
        max_batch=arguments.max_batch,
        contexts=arguments.contexts,
        prefills=arguments.prefills,
        repeats=arguments.repeats,
    )
    for level, quantization in product(levels, quantizations):
        config = EngineConfig(
            model_path=str(resolve_checkpoint(arguments.checkpoint)),
            num_threads=arguments.threads,
            dtype=arguments.dtype,
            backend=arguments.backend,
            cpu_level=level,
            quantization=quantization,
        )
        yield measure_variant(config, steps)
        gc.collect()  # frees the engine's memory before the next one loads


def text_table(variant: Variant) -> str:
    """Formats all steps of an engine."""
    header = ["step", "median ms", "least ms", "rate", "of the limit"]
    rows = [_row(each, variant.limits) for each in variant.steps]
    return f"{variant.level}, {variant.weights} weights: limits {variant.limits}\n\n{table(header, rows)}"


def _row(each: Measured, limits: StepLimits) -> list[str]:
    times = (f"{each.milliseconds:.2f}", f"{each.least_milliseconds:.2f}")
    return [each.name, *times, _rate(each, limits), _percent(each, limits)]


def _rate(each: Measured, limits: StepLimits) -> str:
    """The rate, by the median, of what the step is bound by."""
    if each.work.is_read_bound(limits):
        return f"{significant(each.work.num_bytes / each.milliseconds / 1e6)} GB/s"
    return f"{significant(each.work.flops / each.milliseconds / 1e9)} TFLOP/s"


def summary(variants: Sequence[Variant]) -> str:
    """Formats one column per engine: the median in milliseconds and its share of the limit for each kind of step."""
    names = dict.fromkeys(each.name for variant in variants for each in variant.steps)
    header = ["step, ms", *(f"{variant.level}, {variant.weights}" for variant in variants)]
    return table(header, [[name, *(_summary_cell(variant, name) for variant in variants)] for name in names])


def _summary_cell(variant: Variant, name: str) -> str:
    found = next((each for each in variant.steps if each.name == name), None)
    return f"{significant(found.milliseconds)} ({_percent(found, variant.limits)})" if found else "–"


def _percent(each: Measured, limits: StepLimits) -> str:
    return f"{100 * each.share(limits):.0f} %"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a folder or a GGUF file")
    parser.add_argument("--repeats", type=int, default=9, help="of each step (default: 9)")
    parser.add_argument("--max-batch", type=int, default=16, help="of decodes (default: 16)")
    parser.add_argument(
        "--contexts", type=int, nargs="+", default=(512, 2048), help="tokens of decoding sequences (default: 512 2048)"
    )
    parser.add_argument(
        "--prefills", type=int, nargs="+", default=(512, 2048), help="tokens of prompts (default: 512 2048)"
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
