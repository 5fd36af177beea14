"""The cost of a grammar per decode step, against unconstrained sequences in the same run.

    python -m bench.engine.grammar_cost CHECKPOINT

Unconstrained batches and batches constrained to a JSON Schema alternate, round by round. Steps are the core's own, with
sampling at temperature 1 and no server. The cost does not depend on the model's preferences, so random weights serve.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from bench.figures import significant, spread, table
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher
from glimpse.engine.core.core import Core
from glimpse.engine.protocol.config import Backend, EngineConfig, Quantization
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, SamplingParams
from glimpse.engine.worker.loading.load_engine import load_core, load_vocabulary
from glimpse.native.processors import usable_processors

_BATCHES = (1, 4, 16)
_PROMPT_TOKENS = 128
_MOST_TOKENS = 4096
"""Length of an answer; it is cancelled after the measurement."""
_SCHEMA = {
    "type": "array",
    "minItems": 100_000,  # an answer does not end while it is measured
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["cat", "dog", "bird"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "box": {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
            "note": {"anyOf": [{"type": "string", "pattern": "^[A-Z][a-z ]{0,30}[.]$"}, {"type": "null"}]},
        },
        "required": ["name", "kind", "age", "box", "note"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Decode steps of one batch size, unconstrained and constrained."""

    batch: int
    free_milliseconds: Sequence[float]
    """Seconds of each step; likewise the next."""
    held_milliseconds: Sequence[float]

    @property
    def added_milliseconds(self) -> float:
        """Added seconds per sequence, by medians."""
        return (statistics.median(self.held_milliseconds) - statistics.median(self.free_milliseconds)) / self.batch

    @property
    def least_added_milliseconds(self) -> float:
        """Added seconds per sequence, by the shortest steps, which are more robust on a busy machine."""
        return (min(self.held_milliseconds) - min(self.free_milliseconds)) / self.batch


class Rounds:
    """An engine that runs the batches in turn."""

    def __init__(self, core: Core, *, rounds: int, steps: int) -> None:
        self._core = core
        self._rounds = rounds
        self._steps = steps
        self._draw = random.Random(0)
        self._num_requests = 0

    def compare(self, batch: int) -> Compared:
        """Times decode steps of this many sequences, prefill excluded."""
        free: list[float] = []
        held: list[float] = []
        for _ in range(self._rounds):
            free += self._time(batch, None)
            held += self._time(batch, Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(_SCHEMA)))
        return Compared(batch=batch, free_milliseconds=free, held_milliseconds=held)

    def _time(self, batch: int, grammar: Grammar | None) -> Iterator[float]:
        for _ in range(batch):
            self._submit(grammar)
        while self._core.step().stats.num_generated_tokens < batch:
            pass
        for _ in range(self._steps):
            begun = time.perf_counter()
            step = self._core.step()
            yield 1000 * (time.perf_counter() - begun)
            if step.stats.num_generated_tokens != batch:
                raise RuntimeError(f"a step gave {step.stats.num_generated_tokens} of {batch} sequences a token")
        self._core.shutdown()
        self._core.step()

    def _submit(self, grammar: Grammar | None) -> None:
        self._num_requests += 1
        sampling = SamplingParams(
            grammar=grammar, seed=self._num_requests, max_tokens=_MOST_TOKENS, min_tokens=_MOST_TOKENS, ignore_eos=True
        )
        token_ids = [self._draw.randrange(256) for _ in range(_PROMPT_TOKENS)]
        self._core.submit(Generate(request_id=str(self._num_requests), token_ids=token_ids, sampling=sampling))


def compile_milliseconds(checkpoint: Path, vocab_size: int, *, repeats: int) -> list[float]:
    """Measures the first request with a grammar, up to its first tokens."""
    compiler = GrammarCompiler(load_vocabulary(checkpoint, vocab_size))
    milliseconds: list[float] = []
    for number in range(repeats):
        grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(_SCHEMA | {"title": str(number)}))
        begun = time.perf_counter()
        Matcher(compiler, grammar).allowed()
        milliseconds.append(1000 * (time.perf_counter() - begun))
    return milliseconds


def text_table(compared: list[Compared]) -> str:
    """Formats the table."""
    header = ["sequences", "free median ms", "least", "held median ms", "least", "added a sequence ms", "by the least"]
    return table(header, [_row(each) for each in compared])


def _row(each: Compared) -> list[str]:
    steps = [
        f"{milliseconds:.2f}"
        for kind in (each.free_milliseconds, each.held_milliseconds)
        for milliseconds in (statistics.median(kind), min(kind))
    ]
    return [str(each.batch), *steps, significant(each.added_milliseconds), significant(each.least_added_milliseconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--steps", type=int, default=40, help="of each kind in a round (default: 40)")
    parser.add_argument("--max-batch", type=int, default=max(_BATCHES), help="(default: 16)")
    parser.add_argument("--threads", type=int, default=len(usable_processors()), help="(default: all)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    arguments = parser.parse_args()
    config = EngineConfig(
        model_path=str(arguments.checkpoint),
        prefix_caching=False,
        speculative="off",  # each step has one token of each sequence
        num_threads=arguments.threads,
        backend=arguments.backend,
        quantization=arguments.quantization,
    )
    engine = load_core(config, on_progress=lambda _stage, _fraction: None)
    rounds = Rounds(engine.core, rounds=arguments.rounds, steps=arguments.steps)
    compared: list[Compared] = []
    for batch in (batch for batch in _BATCHES if batch <= arguments.max_batch):
        compared.append(rounds.compare(batch))
        print(f"{batch} sequences: {compared[-1].added_milliseconds:.3f} ms added to each", file=sys.stderr)
    compiling = compile_milliseconds(arguments.checkpoint, engine.model.text.vocab_size, repeats=9)
    print(f"a vocabulary of {engine.model.text.vocab_size} tokens; compiling {spread(compiling)} ms")
    print(text_table(compared))
    if arguments.json:
        document = {"compile_milliseconds": compiling, "steps": [asdict(each) for each in compared]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
