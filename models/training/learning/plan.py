"""What training does at which step: the phase, the sizes of pictures, the tasks. Pure functions of a plan."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from models.training.drawing.pages import draw_page
from models.training.learning.packing import Batch, pack
from models.training.learning.prompts import Prompt, Vocabulary, grid, sample_prompt
from models.training.mix import TASKS, draw_sample
from models.training.resized import resized
from models.training.rng import Luck
from models.training.sample import Picture, Sample, Video

WITHOUT_MEDIA = ("small_talk", "outside", "tool")
"""Tasks that teach the eyes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is taught when. A checkpoint keeps it, so that resuming goes on with it."""

    seed: int = 0
    eyes_steps: int = 3000
    """Steps in which only the vision tower learns, at the beginning."""
    budget: int = 5600
    """Patches and tokens of one worker's part of a batch."""
    emphasis: Mapping[str, float] = field(default_factory=dict[str, float])
    """Task → factor of its share."""
    largest_share: float = 0.25
    """Of samples whose pictures may have any size; the others are small, for speed."""
    most_questions: int = 5
    """About one picture, by tasks of a single question."""
    pages: float = 0.25
    """The part of the budget that goes into pages, which only the eyes learn from."""

    def eyes_only(self, step: int) -> bool:
        """Whether the decoder is left alone."""
        return step < self.eyes_steps

    def shares(self, step: int) -> Mapping[str, float]:
        """Task → weight."""
        left_out = WITHOUT_MEDIA if self.eyes_only(step) else ()
        return {task: share * self.emphasis.get(task, 1) for task, share in TASKS.items() if task not in left_out}

    def largest_side(self, step: int, rng: random.Random) -> int:
        """Bound of a picture's sides in pixels: small ones first, for the eyes learn more from many than from large."""
        if step < self.eyes_steps // 3:
            return 112
        if step < 2 * self.eyes_steps // 3:
            return 168
        return 448 if rng.random() < self.largest_share else 168


def draw_batch(plan: Plan, vocabulary: Vocabulary, step: int, worker: int) -> Batch:
    """One worker's part of a step's batch; the same for the same arguments."""
    rng = random.Random(f"{plan.seed} {step} {worker}")  # noqa: S311 - nothing secret
    drawn = _samples(plan, step, rng)
    for_pages = plan.pages * plan.budget
    pages = _media_within(_pages(rng), for_pages)
    if plan.eyes_only(step):
        return pack([], [*pages, *_media_within(_media(drawn), plan.budget - for_pages)])
    return pack(_prompts_within(drawn, vocabulary, plan.budget - for_pages), pages)


def _samples(plan: Plan, step: int, rng: random.Random) -> Iterator[Sample]:
    shares = plan.shares(step)
    tasks, weights = list(shares), list(shares.values())
    while True:
        (task,) = rng.choices(tasks, weights)
        largest_side = plan.largest_side(step, rng)
        yield resized(draw_sample(task, rng, largest_side=largest_side, most_questions=plan.most_questions))


def _pages(rng: random.Random) -> Iterator[Picture]:
    luck = Luck(rng=rng)
    while True:
        yield draw_page(luck)


def _media(drawn: Iterator[Sample]) -> Iterator[Picture | Video]:
    for sample in drawn:
        yield from (part for turn in sample.turns for part in turn.content if not isinstance(part, str))


def _media_within(drawn: Iterator[Picture | Video], budget: float) -> list[Picture | Video]:
    """As many as it takes to reach the budget: to leave out what exceeds the rest of it would favour small ones."""
    media: list[Picture | Video] = []
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


def _num_patches(media: Sequence[Picture | Video]) -> int:
    return sum(moments * rows * columns for moments, rows, columns in map(grid, media))
