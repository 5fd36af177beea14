"""Two workloads with published figures, as questions to an engine.

nano-vllm's: many text prompts and answers of random lengths. DashInfer-VLM's: chats about several images, cold and in
their third turn.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.engine.driver import Driver, Question, Run, image, text
from glimpse.engine.checkpoint.model_config.model import ModelConfig

PUBLISHED: Mapping[str, tuple[float, float, float]] = {"2B": (0.78, 3.85, 7.98), "7B": (0.44, 2.20, 4.68)}
"""DashInfer-VLM's requests per second on an A100: sequential, 32 concurrent, and 32 concurrent with cached turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSizes:
    """Number of chats about images."""

    side: int = 30
    """Side of an image, in tokens."""
    question_tokens: int = 100
    answer_tokens: int = 120


def batch_of_texts(num_prompts: int, *, shortest: int, longest: int, seed: int = 0) -> list[Question]:
    """Returns prompts and answers of random lengths between the two."""
    draw = random.Random(seed)
    return [
        Question(token_ids=text(draw, draw.randint(shortest, longest)), output_tokens=draw.randint(shortest, longest))
        for _ in range(num_prompts)
    ]


def chats(model: ModelConfig, num_chats: int, sizes: ChatSizes, *, seed: int) -> list[Question]:
    """Returns first turns, each about two to four new images: about 2,800 prompt tokens and 120 answer tokens."""
    draw = random.Random(seed)
    return [_first_turn(draw, model, sizes) for _ in range(num_chats)]


def after_turns(
    driver: Driver, first_turns: Sequence[Question], sizes: ChatSizes, *, num_turns: int, concurrency: int, seed: int
) -> list[Question]:
    """Returns the next turn of each chat."""
    draw = random.Random(seed)
    questions = list(first_turns)
    for _ in range(num_turns):
        run = driver.ask(questions, concurrency=concurrency)
        questions = [
            _next_turn(draw, asked, answer, sizes) for asked, answer in zip(questions, run.answers, strict=True)
        ]
    return questions


def warm_up(driver: Driver, model: ModelConfig, sizes: ChatSizes) -> Run:
    """Warms up, so that one-time costs are not measured."""
    return driver.ask(chats(model, 2, sizes, seed=-1), concurrency=2)


def _first_turn(draw: random.Random, model: ModelConfig, sizes: ChatSizes) -> Question:
    token_ids: list[int] = []
    media = []
    for _ in range(draw.choice((2, 3, 4))):
        placeholders, medium = image(draw, model, start=len(token_ids), side=sizes.side)
        token_ids += [*placeholders, *text(draw, 1)]
        media.append(medium)
    token_ids += text(draw, sizes.question_tokens)
    return Question(token_ids=tuple(token_ids), media=tuple(media), output_tokens=sizes.answer_tokens)


def _next_turn(draw: random.Random, asked: Question, answer: Sequence[int], sizes: ChatSizes) -> Question:
    token_ids = (*asked.token_ids, *answer, *text(draw, sizes.question_tokens))
    return Question(token_ids=token_ids, media=asked.media, output_tokens=sizes.answer_tokens)
