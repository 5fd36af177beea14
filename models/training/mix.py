"""All tasks, their weights, and an endless stream of samples."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from models.training.rng import SampleRng
from models.training.sample import Sample
from models.training.tasks.as_json import json_sample
from models.training.tasks.calling import tool_sample
from models.training.tasks.chat import outside_sample, small_talk_sample
from models.training.tasks.constrained import constrained_sample
from models.training.tasks.pairs import two_images_sample
from models.training.tasks.reading import read_sample
from models.training.tasks.still import ASKS, follow_up_sample, still_sample
from models.training.tasks.video_tasks import colour_change_sample, first_sample, motion_sample

_MAKERS: Mapping[str, Callable[[str, SampleRng], Sample]] = {
    **dict.fromkeys(ASKS, still_sample),
    "read": read_sample,
    "two_images": two_images_sample,
    "motion": motion_sample,
    "colour_change": colour_change_sample,
    "first": first_sample,
    "follow_up": follow_up_sample,
    "json": json_sample,
    "tool": tool_sample,
    "schema": constrained_sample,
    "choice": constrained_sample,
    "small_talk": small_talk_sample,
    "outside": outside_sample,
}
"""Task → its sample generator."""

TASKS: Mapping[str, float] = {
    "describe": 14,
    "shape": 8,
    "colour": 9,
    "place": 8,
    "size": 4,
    "count": 10,
    "yes_no": 9,
    "read": 16,
    "two_images": 6,
    "motion": 5,
    "colour_change": 3,
    "first": 3,
    "follow_up": 5,
    "json": 3,
    "tool": 3,
    "schema": 5,
    "choice": 4,
    "small_talk": 2,
    "outside": 3,
}
"""Task → its weight in the mix."""

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
"""The checkpoint's chat template."""

CORPUS_SAMPLES = 20_000
"""Number of conversations for training the tokenizer."""


def draw_sample(
    task: str, source: random.Random, *, held_out: bool = False, largest_side: int = 448, most_questions: int = 1
) -> Sample:
    """Draws a sample of a task.

    Args:
        task: One of `TASKS`.
        source: All randomness comes from it.
        held_out: Use templates, words and typefaces that training does not use.
        largest_side: Bound of the images' sides, in pixels.
        most_questions: Bound of what is asked about one image by tasks of a single question.
    """
    rng = SampleRng(source=source, held_out=held_out, largest_side=largest_side, most_questions=most_questions)
    return _MAKERS[task](task, rng)


def samples(
    seed: int,
    worker: int = 0,
    *,
    held_out: bool = False,
    shares: Mapping[str, float] = TASKS,
    largest_side: int = 448,
) -> Iterator[Sample]:
    """Yields samples without end, tasks mixed by weight; deterministic."""
    source = random.Random(f"{seed} {worker} {held_out}")  # noqa: S311 - nothing secret
    tasks, weights = list(shares), list(shares.values())
    while True:
        (task,) = source.choices(tasks, weights)
        yield draw_sample(task, source, held_out=held_out, largest_side=largest_side)


def corpus(seed: int, num_samples: int = CORPUS_SAMPLES) -> Iterator[str]:
    """Yields texts for training the tokenizer: conversations of all tasks, and the template's own text."""
    drawn = samples(seed, shares=TASKS, largest_side=112)
    for sample in islice(drawn, num_samples):
        said = [part for turn in sample.turns for part in turn.content if isinstance(part, str)]
        yield from said
        if sample.tools:
            yield from (json.dumps(tool["function"], ensure_ascii=False) for tool in sample.tools)
            yield from _template_texts()


def _template_texts() -> list[str]:
    """Returns the chat template's own text about tools."""
    texts = re.findall(r"\{\{- '([^']*)'", CHAT_TEMPLATE.read_text(encoding="utf-8"))
    return [text.replace("\\n", "\n") for text in texts if "<|" not in text]
