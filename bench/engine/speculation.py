"""Adaptive draft tokens against none, on text that repeats its prompt and on text that does not.

    python -m bench.engine.speculation CHECKPOINT

Every step is computed by the model; then the tokens that it sampled are replaced by those of a given answer, because a
model of random weights neither quotes nor writes prose. Both engines share the model and take turns, round by round.
The clock runs from the moment when all sequences of a batch decode to the end of the first one.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from bench.figures import ratios, significant, table
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.ngram_proposer import MAX_DRAFT_TOKENS
from glimpse.engine.core.plan import InFlightStep, Sample, SequenceChunk, StepPlan, StepResult
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.core.step_pipeline import Runner
from glimpse.engine.protocol.config import Backend, CpuLevel, EngineConfig, Quantization
from glimpse.engine.protocol.messages import Generate, StepStats
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.build_runner import make_runner
from glimpse.engine.worker.loading.load_engine import load_shard

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_WORD_EDITED = 25
"""One of so many words is replaced in an edited text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A prompt and the answer that is given in place of the model's."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    """A launched step whose samples are replaced."""

    step: InFlightStep
    chunks: Sequence[SequenceChunk]
    scripts: Mapping[int, Scripted]

    def result(self) -> StepResult:
        self.step.result()
        sampled = {chunk.sequence_id: self._sampled(chunk) for chunk in self.chunks if chunk.samples}
        return StepResult(
            samples={sequence_id: Sample(token_id=own[-1]) for sequence_id, own in sampled.items()},
            accepted={
                sequence_id: tuple(Sample(token_id=token_id) for token_id in own[:-1])
                for sequence_id, own in sampled.items()
            },
        )

    def _sampled(self, chunk: SequenceChunk) -> Sequence[int]:
        """Returns the draft tokens that equal the answer, and the answer's token after them."""
        script = self.scripts[chunk.sequence_id]
        num_known = len(chunk.token_ids) - chunk.num_draft_tokens
        begin = chunk.start + num_known - len(script.prompt)
        num_accepted = 0
        for draft, wanted in zip(chunk.token_ids[num_known:], script.answer[begin:], strict=False):
            if draft != wanted:
                break
            num_accepted += 1
        return script.answer[begin : begin + num_accepted + 1]


class ScriptedRunner:
    """A runner whose sequences follow scripts."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._scripts: dict[int, Scripted] = {}
        self._waiting: dict[tuple[int, ...], list[Scripted]] = {}

    def follow(self, scripts: Sequence[Scripted]) -> None:
        """Gives the next sequences with these prompts their answers."""
        for script in scripts:
            self._waiting.setdefault(script.prompt, []).append(script)

    def launch(self, plan: StepPlan) -> InFlightStep:
        for start in plan.started:
            self._scripts[start.sequence_id] = self._waiting[start.prompt_token_ids].pop()
        return ScriptedStep(self._runner.launch(plan), plan.chunks, self._scripts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One batch."""

    tokens_per_second: float
    tokens_per_step: float
    """Mean number of tokens of a sequence."""
    num_draft_tokens: int
    num_accepted_tokens: int


class Decoder:
    """A core that decodes scripts."""

    def __init__(self, runner: Runner, limits: SchedulerLimits, model: ModelSpec, clock: Callable[[], float]) -> None:
        self._runner = ScriptedRunner(runner)
        self._core = Core(runner=self._runner, model=model, limits=limits, max_waiting=64, clock=clock)
        self._clock = clock
        self._num_asked = 0

    def decode(self, scripts: Sequence[Scripted]) -> Round:
        """Decodes a batch until its first answer ends, and discards the rest."""
        self._runner.follow(scripts)
        for script in scripts:
            self._num_asked += 1
            sampling = SamplingParams(temperature=0.0, max_tokens=len(script.answer), ignore_eos=True)
            request = Generate(request_id=str(self._num_asked), token_ids=list(script.prompt), sampling=sampling)
            self._core.submit(request)
        while self._core.step().stats.num_generated_tokens < len(scripts):
            pass
        begun, stats, has_ended = self._clock(), list[StepStats](), False
        while not has_ended:
            step = self._core.step()
            stats.append(step.stats)
            has_ended = any(event.finish for event in step.events)
        seconds = self._clock() - begun
        self._core.shutdown()
        while self._core.has_work:
            self._core.step()
        num_tokens = sum(each.num_generated_tokens for each in stats)
        return Round(
            tokens_per_second=num_tokens / seconds,
            tokens_per_step=num_tokens / len(stats) / len(scripts),
            num_draft_tokens=sum(each.num_draft_tokens for each in stats),
            num_accepted_tokens=sum(each.num_accepted_tokens for each in stats),
        )


class Texts:
    """Makes prompts and answers from this project's documentation."""

    def __init__(self, encode: Callable[[str], Sequence[int]], *, prompt_tokens: int, answer_tokens: int) -> None:
        self._encode = encode
        self._prompt_tokens = prompt_tokens
        self._answer_tokens = answer_tokens
        self._prose = [(_DOCS / name).read_text("utf-8") for name in ("decisions.md", "operations.md")]

    def edit(self, draw: random.Random) -> Scripted:
        """The answer is the prompt's text with some words replaced."""
        words = self._passage(self._prose[0], draw).split(" ")
        edited = [draw.choice(words) if draw.randrange(_WORD_EDITED) == 0 else word for word in words]
        return self._scripted(" ".join(words), " ".join(edited))

    def records(self, draw: random.Random) -> Scripted:
        """The answer is JSON about names of the prompt's list."""
        names = [f"{draw.choice('BDFGKLM')}{draw.choice('aeiou')}{draw.randrange(100, 1000)}" for _ in range(40)]
        rows = [{"name": name, "seats": draw.randrange(1, 9), "open": draw.random() < 0.5} for name in names]
        return self._scripted("\n".join(f"{row['name']}: {row['seats']} seats" for row in rows), json.dumps(rows))

    def prose(self, draw: random.Random) -> Scripted:
        """The answer is prose on another subject than the prompt's."""
        return self._scripted(*(self._passage(text, draw) for text in self._prose))

    def noise(self, draw: random.Random) -> Scripted:
        """Random tokens, which repeat nothing."""
        tokens = tuple(draw.randrange(256) for _ in range(self._prompt_tokens + self._answer_tokens))
        return Scripted(prompt=tokens[: self._prompt_tokens], answer=tokens[self._prompt_tokens :])

    def _passage(self, text: str, draw: random.Random) -> str:
        size = 8 * max(self._prompt_tokens, self._answer_tokens)  # characters, enough for so many tokens
        begin = draw.randrange(len(text) - size)
        return text[begin : begin + size]

    def _scripted(self, prompt: str, answer: str) -> Scripted:
        return Scripted(
            prompt=tuple(self._encode(prompt)[: self._prompt_tokens]),
            answer=tuple(self._encode(answer)[: self._answer_tokens]),
        )


def row(name: str, batch: int, plain: Sequence[Round], drafted: Sequence[Round]) -> list[str]:
    """Formats a workload at one batch size."""
    rates, others = ([each.tokens_per_second for each in rounds] for rounds in (plain, drafted))
    num_draft_tokens = sum(each.num_draft_tokens for each in drafted)
    num_accepted_tokens = sum(each.num_accepted_tokens for each in drafted)
    share = f"{100 * num_accepted_tokens / num_draft_tokens:.0f} %" if num_draft_tokens else "–"
    return [
        name,
        str(batch),
        significant(statistics.median(rates)),
        significant(statistics.median(others)),
        str(ratios(others, rates)),
        f"{statistics.median(each.tokens_per_step for each in drafted):.2f}",
        f"{num_accepted_tokens} of {num_draft_tokens} ({share})",
    ]


def make_decoders(config: EngineConfig, clock: Callable[[], float]) -> tuple[Decoder, Decoder]:
    """Loads a checkpoint; returns a decoder without and one with draft tokens, which share the model."""
    shard = load_shard(config, rank=0, on_progress=lambda _stage, _fraction: None)
    runner = make_runner(config, shard, None, on_progress=lambda _stage, _fraction: None)
    text = shard.config.text
    limits = SchedulerLimits(
        num_blocks=runner.num_blocks,
        block_size=config.block_size,
        max_model_len=min(text.max_position_embeddings, runner.num_blocks * config.block_size),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        encoder_bytes_per_row=text.encoder_row_width * shard.dtype.itemsize,
        encoder_cache_bytes=0,
        prefix_caching=False,
        max_decode_slowdown=1000.0,
    )
    model = ModelSpec(vocab_size=text.vocab_size, encoder_row_width=text.encoder_row_width, eos_token_ids=())
    adaptive = replace(limits, max_draft_tokens=MAX_DRAFT_TOKENS, adaptive_drafts=True)
    return Decoder(runner, limits, model, clock), Decoder(runner, adaptive, model, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--texts", nargs="+", choices=("edit", "records", "prose", "noise"), default=["edit", "prose"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--answer-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=get_args(Backend), default="auto")
    parser.add_argument("--cpu-level", choices=get_args(CpuLevel), default="auto")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, for a machine that is shared")
    arguments = parser.parse_args()
    config = EngineConfig(
        model_path=arguments.checkpoint,
        device="cpu",
        backend=arguments.backend,
        cpu_level=arguments.cpu_level,
        quantization=arguments.quantization,
        num_threads=arguments.num_threads,
        kv_cache_bytes=256 << 20,
    )
    plain, adaptive = make_decoders(config, time.process_time if arguments.cpu_time else time.perf_counter)
    tokenizer = load_tokenizer(Path(arguments.checkpoint))
    texts = Texts(tokenizer.encode, prompt_tokens=arguments.prompt_tokens, answer_tokens=arguments.answer_tokens)
    rows: list[list[str]] = []
    for name in arguments.texts:
        draw = random.Random(arguments.seed)
        for batch in arguments.batches:
            rounds: tuple[list[Round], list[Round]] = ([], [])
            for index in range(1 + arguments.rounds):
                scripts = [getattr(texts, name)(draw) for _ in range(batch)]
                decoders = [(plain, rounds[0]), (adaptive, rounds[1])]
                for decoder, results in decoders if index % 2 else reversed(decoders):
                    results.append(decoder.decode(scripts))
            rows.append(row(name, batch, rounds[0][1:], rounds[1][1:]))
            print(*rows[-1], sep="; ", file=sys.stderr)
    header = ["text", "batch", "tokens/s without", "with", "ratio", "tokens per step", "draft tokens accepted"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
