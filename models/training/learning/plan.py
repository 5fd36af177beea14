"""The schedule of training: phase, image sizes and tasks of each step. Pure functions of a plan."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.training.batching.packing import Batch, pack
from models.training.batching.prompts import Prompt, Vocabulary, grid, sample_prompt
from models.training.drawing.pages import draw_page
from models.training.mix import TASKS, draw_sample
from models.training.resized import resized
from models.training.rng import SampleRng
from models.training.sample import Sample, SampleImage, SampleVideo

WITHOUT_MEDIA = ("small_talk", "outside", "tool")
"""Tasks without images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The schedule. Stored in the checkpoint for resuming."""

    seed: int = 0
    vision_steps: int = 3000
    """Steps at the start that train only the vision encoder."""
    budget: int = 5600
    """Patches and tokens in a worker's share of a batch."""
    emphasis: Mapping[str, float] = field(default_factory=dict[str, float])
    """Task → factor of its share."""
    largest_share: float = 0.25
    """Share of samples with images of any size; the others are small, for speed."""
    most_questions: int = 5
    """Questions about one image in single-question tasks."""
    pages: float = 0.25
    """Share of the budget for pages, which train only the vision encoder."""

    def vision_only(self, step: int) -> bool:
        """Whether only the vision encoder is trained."""
        return step < self.vision_steps

    def shares(self, step: int) -> Mapping[str, float]:
        """Task → weight."""
        left_out = WITHOUT_MEDIA if self.vision_only(step) else ()
        return {task: share * self.emphasis.get(task, 1) for task, share in TASKS.items() if task not in left_out}

    def largest_side(self, step: int, source: random.Random) -> int:
        """The largest side of an image, in pixels. Small images come first: more of them fit."""
        if step < self.vision_steps // 3:
            return 112
        if step < 2 * self.vision_steps // 3:
            return 168
        return 448 if source.random() < self.largest_share else 168


def draw_batch(plan: Plan, vocabulary: Vocabulary, step: int, worker: int) -> Batch:
    """Returns a worker's share of a step's batch, deterministically."""
    source = random.Random(f"{plan.seed} {step} {worker}")  # noqa: S311 - nothing secret
    drawn = _samples(plan, step, source)
    for_pages = plan.pages * plan.budget
    pages = _media_within(_pages(source), for_pages)
    if plan.vision_only(step):
        return pack([], [*pages, *_media_within(_media(drawn), plan.budget - for_pages)])
    return pack(_prompts_within(drawn, vocabulary, plan.budget - for_pages), pages)


def _samples(plan: Plan, step: int, source: random.Random) -> Iterator[Sample]:
    shares = plan.shares(step)
    tasks, weights = list(shares), list(shares.values())
    while True:
        (task,) = source.choices(tasks, weights)
        largest_side = plan.largest_side(step, source)
        yield resized(draw_sample(task, source, largest_side=largest_side, most_questions=plan.most_questions))


def _pages(source: random.Random) -> Iterator[SampleImage]:
    rng = SampleRng(source=source)
    while True:
        yield draw_page(rng)


def _media(drawn: Iterator[Sample]) -> Iterator[SampleImage | SampleVideo]:
    for sample in drawn:
        yield from (part for turn in sample.turns for part in turn.content if not isinstance(part, str))


def _media_within(drawn: Iterator[SampleImage | SampleVideo], budget: float) -> list[SampleImage | SampleVideo]:
    """Takes media until the budget is reached; dropping those that exceed it would favour small ones."""
    media: list[SampleImage | SampleVideo] = []
    spent = 0
    while spent < budget:
        medium = next(drawn)
        media.append(medium)
        spent += _num_patches([medium])
    return media


def _prompts_within(drawn: Iterator[Sample], vocabulary: Vocabulary, budget: float) -> list[Prompt]:
    prompts: list[Prompt] = []
    spent = 0
    while spent < budget:
        prompt = sample_prompt(next(drawn), vocabulary)
        prompts.append(prompt)
        spent += len(prompt.token_ids) + _num_patches(prompt.media)
    return prompts


def _num_patches(media: Sequence[SampleImage | SampleVideo]) -> int:
    return sum(moments * rows * columns for moments, rows, columns in map(grid, media))
