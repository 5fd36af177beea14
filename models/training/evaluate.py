"""Measures accuracy: `python -m models.training.evaluate CHECKPOINT --samples 500`.

Decodes greedily on held-out templates, words and typefaces from another seed, and judges answers by meaning. Writes the
table to standard output and to `scores.json`.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import get_args

import numpy as np

from glimpse.engine.protocol.config import EngineConfig, Quantization
from glimpse.engine.protocol.messages import FinishReason, Generate, MediaInput
from glimpse.engine.protocol.sampling_params import Grammar, SamplingParams
from glimpse.engine.worker.loading.load_engine import LoadedEngine, load_core
from glimpse.media.processing.image import ImageProcessing, image_processing
from glimpse.offline.run import run_batch
from models.training.batching.prompts import Prompt, Vocabulary, make_prompt
from models.training.batching.vocabulary import load_vocabulary
from models.training.mix import TASKS, draw_sample
from models.training.resized import resized
from models.training.sample import Sample, SampleImage
from models.training.tasks.check import Counts, Reads

SEED = 1_000_003
"""A seed that training does not use."""
MAX_TOKENS = 160
"""A longer answer is wrong."""


def _counts_to_4(sample: Sample) -> bool:
    return isinstance(sample.check, Counts) and sample.check.number <= 4


def _reads_to_4(sample: Sample) -> bool:
    return isinstance(sample.check, Reads) and len(sample.check.text) <= 4


def _describes_1_to_3(sample: Sample) -> bool:
    return all(1 <= len(part.objects) <= 3 for part in sample.turns[-2].content if isinstance(part, SampleImage))


def _of(number: int) -> Callable[[Sample], bool]:
    def holds(sample: Sample) -> bool:
        return all(len(part.objects) == number for part in sample.turns[-2].content if isinstance(part, SampleImage))

    return holds


PARTS: Mapping[str, tuple[str, Callable[[Sample], bool]]] = {
    "count_to_4": ("count", _counts_to_4),
    "read_to_4": ("read", _reads_to_4),
    "describe_1_to_3": ("describe", _describes_1_to_3),
    "schema_of_one": ("schema", _of(1)),
    "schema_of_two": ("schema", _of(2)),
}
"""Subsets of tasks with scores of their own: name → task, and a predicate on its samples."""
EXAMS = (*TASKS, *PARTS)
"""All scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a task or a subset."""

    task: str
    num_samples: int
    num_right: int
    wrong: tuple[tuple[str, str, str], ...]
    """Examples of errors: (question, expected answer, actual answer)."""

    @property
    def accuracy(self) -> float:
        """Accuracy, 0 … 1."""
        return self.num_right / self.num_samples


def evaluate(
    checkpoint: Path,
    tasks: Sequence[str],
    num_samples: int,
    *,
    seed: int = SEED,
    held_out: bool = True,
    num_threads: int | None = None,
    quantization: Quantization = "none",
) -> list[Score]:
    """Scores a checkpoint in Hugging Face's format.

    Args:
        checkpoint: its folder.
        tasks: names from `EXAMS`.
        num_samples: of each task.
        seed: of the samples.
        held_out: use templates, words and typefaces that training does not use.
        num_threads: of the engine.
        quantization: of the weights.
    """
    config = EngineConfig(
        model_path=str(checkpoint), num_threads=num_threads, quantization=quantization, kv_cache_bytes=256 << 20
    )
    engine = load_core(config, on_progress=lambda _stage, _part: None)
    candidate = _Candidate(
        engine=engine, vocabulary=load_vocabulary(checkpoint), processing=image_processing(checkpoint)
    )
    return [_score(task, candidate, num_samples, seed, held_out=held_out) for task in tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """The checkpoint under evaluation."""

    engine: LoadedEngine
    vocabulary: Vocabulary
    processing: ImageProcessing


def _score(task: str, candidate: _Candidate, num_samples: int, seed: int, *, held_out: bool) -> Score:
    rng = random.Random(f"{seed} {task}")  # noqa: S311 - nothing secret
    whole, fits = PARTS.get(task, (task, _any))
    drawn = (draw_sample(whole, rng, held_out=held_out) for _ in count())
    samples = [resized(sample, candidate.processing) for sample in islice(filter(fits, drawn), num_samples)]
    answers = _answers(samples, task, candidate)
    wrong = [
        (_question(sample), sample.answer, answer)
        for sample, answer in zip(samples, answers, strict=True)
        if answer is None or not sample.check.right(answer)
    ]
    shown = tuple((question, wanted, answer or "(no end)") for question, wanted, answer in wrong[:12])
    return Score(task=task, num_samples=num_samples, num_right=num_samples - len(wrong), wrong=shown)


def _any(_sample: Sample) -> bool:
    return True


def _answers(samples: Sequence[Sample], evaluation: str, candidate: _Candidate) -> list[str | None]:
    """Returns the answers in place of each last turn; None if an answer does not end."""
    vocabulary = candidate.vocabulary
    names = (f"{evaluation} {index}" for index in count())
    requests = [
        request(
            make_prompt(sample.turns[:-1], vocabulary, task=sample.task, tools=sample.tools, answering=True),
            name,
            grammar=sample.grammar,
        )
        for sample, name in zip(samples, names, strict=False)
    ]
    outputs = run_batch(candidate.engine.core, requests, vocabulary.tokenizer, progress=False)
    completions = [output.outputs[0] for output in outputs]
    return [each.text if each.finish_reason is FinishReason.STOP else None for each in completions]


def request(prompt: Prompt, name: str, *, max_tokens: int = MAX_TOKENS, grammar: Grammar | None = None) -> Generate:
    """Returns the engine's request for a prompt; `name` is unique."""
    media = [
        MediaInput(
            span=replace(span, key=hashlib.sha256(f"{name} {index}".encode()).digest()),
            content=np.ascontiguousarray(medium.pixels if isinstance(medium, SampleImage) else medium.frames).data.cast(
                "B"
            ),
        )
        for index, (span, medium) in enumerate(zip(prompt.spans, prompt.media, strict=True))
    ]
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, grammar=grammar)
    return Generate(request_id=name, token_ids=prompt.token_ids.tolist(), media=media, sampling=sampling)


def _question(sample: Sample) -> str:
    texts = (part for turn in sample.turns[:-1] for part in turn.content if isinstance(part, str))
    return " | ".join(text.strip() for text in texts)


def table(scores: Sequence[Score]) -> str:
    """Formats the table."""
    lines = [f"{score.task:16} {100 * score.accuracy:6.1f} %  of {score.num_samples}" for score in scores]
    return "\n".join(lines)


def write_scores(path: Path, scores: Sequence[Score], *, seed: int, add: bool = False) -> None:
    """Writes `scores.json`; if `add`, keeps its scores of other tasks."""
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"] if add else {}
    tasks |= {score.task: {"samples": score.num_samples, "right": score.num_right} for score in scores}
    document = {"seed": seed, "tasks": {task: tasks[task] for task in EXAMS if task in tasks}}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Score a checkpoint on samples that training did not see.")
    parser.add_argument("checkpoint", type=Path, help="folder in Hugging Face's format")
    parser.add_argument("--samples", type=int, default=500, help="of each task (default: 500)")
    parser.add_argument("--tasks", nargs="+", default=list(EXAMS), choices=EXAMS, help="default: all")
    parser.add_argument("--seed", type=int, default=SEED, help="of the samples")
    parser.add_argument("--familiar", action="store_true", help="ask with the wordings and letters of training")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong answers of each task, at most 12")
    parser.add_argument("--threads", type=int, help="of the engine")
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none", help="of the weights")
    parser.add_argument("--add", action="store_true", help="keep the file's scores of other tasks")
    parser.add_argument("--out", type=Path, help="file of the scores (default: scores.json beside the checkpoint)")
    arguments = parser.parse_args()
    scores = evaluate(
        arguments.checkpoint,
        arguments.tasks,
        arguments.samples,
        seed=arguments.seed,
        held_out=not arguments.familiar,
        num_threads=arguments.threads,
        quantization=arguments.quantization,
    )
    print(table(scores))
    for score in scores:
        for question, wanted, given in score.wrong[: arguments.wrong]:
            print(f"{score.task}: {question!r}\n    wanted {wanted!r}\n    given  {given!r}")
    path = arguments.out or arguments.checkpoint / "scores.json"
    write_scores(path, scores, seed=arguments.seed, add=arguments.add)


if __name__ == "__main__":
    main()
