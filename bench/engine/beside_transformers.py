"""The engine's steps beside those of transformers, in one process and in turns.

    python -m bench.engine.beside_transformers CHECKPOINT
    python -m bench.engine.beside_transformers CHECKPOINT --rounds 5 --batches 1 16

A step is a prompt, or one token of each of several sequences. transformers computes a padded batch with its own cache,
without scheduling or sampling; ours are the core's steps. Both compute in bfloat16. Ratios are ours to theirs, by
round.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.figures import spread, table
from glimpse.engine.benchmark.timed_engine import TimedEngine
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.native.processors import usable_processors


class Reference:
    """transformers' model."""

    def __init__(self, path: Path, repeats: int) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
        self._repeats = repeats

    def prefill(self, num_tokens: int) -> list[float]:
        """Returns the seconds of prompts of so many tokens."""
        return [self._compute(torch.randint(256, (1, num_tokens)))[0] for _ in range(self._repeats)]

    def decode(self, batch: int, context: int) -> list[float]:
        """Returns the seconds of steps of so many sequences, from so many tokens on."""
        _, cache = self._compute(torch.randint(256, (batch, context)))
        return [self._compute(torch.randint(256, (batch, 1)), cache)[0] for _ in range(self._repeats)]

    @torch.inference_mode()
    def _compute(self, token_ids: torch.Tensor, cache: Any = None) -> tuple[float, Any]:
        begun = time.perf_counter()
        output = self._model(token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begun, output.past_key_values


def measure(
    timed: TimedEngine, reference: Reference, arguments: argparse.Namespace
) -> Iterator[tuple[str, float, float]]:
    """Yields each kind of step with the median seconds of both."""
    for batch in arguments.batches:
        timed.run(batch, arguments.context)
        ours = statistics.median(timed.decode())
        timed.end()
        yield (
            f"decode {batch} x {arguments.context}",
            ours,
            statistics.median(reference.decode(batch, arguments.context)),
        )
    ours = statistics.median(timed.prefill(arguments.context))
    yield f"prefill {arguments.context}", ours, statistics.median(reference.prefill(arguments.context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--repeats", type=int, default=5, help="of a step in a round (default: 5)")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 16), help="of decode steps (default: 1 16)")
    parser.add_argument("--context", type=int, default=512, help="tokens of prompts and sequences (default: 512)")
    arguments = parser.parse_args()
    threads = len(usable_processors())
    torch.set_num_threads(threads)
    engine = load_core(
        EngineConfig(
            model_path=str(arguments.checkpoint),
            device="cpu",
            dtype="bfloat16",
            max_batch_tokens=max(arguments.context, *arguments.batches),
            prefix_caching=False,
            speculative="off",
            num_threads=threads,
        ),
        on_progress=lambda _stage, _fraction: None,
    )
    timed = TimedEngine(engine.core, engine.model, repeats=arguments.repeats)
    reference = Reference(arguments.checkpoint, arguments.repeats)
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(arguments.rounds):
        for name, ours, theirs in measure(timed, reference, arguments):
            times.setdefault(name, []).append((ours, theirs))
    rows = list[list[str]]()
    for name, found in times.items():
        sides = ([1000 * each[side] for each in found] for side in (0, 1))
        rows.append([name, *(str(spread(values)) for values in (*sides, [ours / theirs for ours, theirs in found]))])
    print(table(["step, ms", "Glimpse", "transformers", "ratio"], rows))


if __name__ == "__main__":
    main()
