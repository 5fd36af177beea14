"""Converts samples to prompts: token ids with media spans.

Independent of torch and of batching.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from glimpse.engine.checkpoint.text.template import ChatTemplate
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.models.qwen_vl import layout_prompt
from glimpse.media.kind import MediaKind
from models.training.learning.pixels import SIDE
from models.training.sample import Sample, SampleImage, SampleVideo, Turn

MERGE = 2
"""Patches along the side of a token."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Chat template and tokenizer."""

    tokenizer: Tokenizer
    template: ChatTemplate
    start_id: int
    """Begins a message."""
    end_id: int
    """Ends a message."""
    image_id: int
    video_id: int
    newline_id: int
    assistant_ids: tuple[int, ...]
    """The role's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A sample as the network's input."""

    task: str
    token_ids: Ints
    """[tokens], with a placeholder for each media token."""
    positions: Ints
    """[3, tokens]"""
    learnt: npt.NDArray[np.bool_]
    """[tokens]: whether the token is the assistant's, end token included."""
    media: tuple[SampleImage | SampleVideo, ...]
    """In the order of `spans`."""
    spans: tuple[MediaSpan, ...]
    choices: tuple[tuple[int, Ints], ...]
    """(token, ids): the learnt token is one of these by a constraint."""


def make_vocabulary(tokenizer: Tokenizer, template: ChatTemplate) -> Vocabulary:
    """Looks up the chat template's special tokens."""

    def one(text: str) -> int:
        (token_id,) = tokenizer.encode(text)
        return token_id

    return Vocabulary(
        tokenizer=tokenizer,
        template=template,
        start_id=one("<|im_start|>"),
        end_id=one("<|im_end|>"),
        image_id=one("<|image_pad|>"),
        video_id=one("<|video_pad|>"),
        newline_id=one("\n"),
        assistant_ids=tuple(tokenizer.encode("assistant")),
    )


def make_prompt(
    turns: Sequence[Turn], vocabulary: Vocabulary, *, task: str, tools: Sequence[dict[str, Any]], answering: bool
) -> Prompt:
    """Encodes a conversation; if `answering`, with a generation prompt."""
    messages = [{"role": turn.role, "content": _content(turn)} for turn in turns]
    text = vocabulary.template.render(messages, tools=list(tools) or None, add_generation_prompt=answering)
    media = tuple(part for turn in turns for part in turn.content if not isinstance(part, str))
    token_ids, spans = _expand(vocabulary.tokenizer.encode(text), media, vocabulary)
    learnt = _learnt(token_ids, vocabulary)
    choices = _constrain(turns, token_ids, learnt, vocabulary.tokenizer)
    return Prompt(
        task=task,
        token_ids=np.array(token_ids, np.int64),
        positions=layout_prompt(len(token_ids), spans, MERGE).prompt_positions,
        learnt=learnt,
        media=media,
        spans=spans,
        choices=choices,
    )


def sample_prompt(sample: Sample, vocabulary: Vocabulary) -> Prompt:
    """Encodes the whole conversation of a sample, for training."""
    return make_prompt(sample.turns, vocabulary, task=sample.task, tools=sample.tools, answering=False)


def grid(medium: SampleImage | SampleVideo) -> tuple[int, int, int]:
    """Returns the grid of patches: time, height, width."""
    if isinstance(medium, SampleImage):
        return 1, medium.pixels.shape[0] // SIDE, medium.pixels.shape[1] // SIDE
    return len(medium.frames) // 2, medium.frames.shape[1] // SIDE, medium.frames.shape[2] // SIDE


def num_rows(medium: SampleImage | SampleVideo) -> int:
    """Returns its number of tokens."""
    moments, rows, columns = grid(medium)
    return moments * rows * columns // MERGE**2


def _content(turn: Turn) -> str | list[dict[str, str]]:
    if all(isinstance(part, str) for part in turn.content):
        return "".join(map(str, turn.content))
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image" if isinstance(part, SampleImage) else "video"}
        for part in turn.content
    ]


def _expand(
    token_ids: Sequence[int], media: Sequence[SampleImage | SampleVideo], vocabulary: Vocabulary
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    expanded: list[int] = []
    spans: list[MediaSpan] = []
    kinds = {vocabulary.image_id: MediaKind.IMAGE, vocabulary.video_id: MediaKind.VIDEO}
    for token_id in token_ids:
        if token_id not in kinds:
            expanded.append(token_id)
            continue
        medium = media[len(spans)]
        count = num_rows(medium)
        spans.append(MediaSpan(kind=kinds[token_id], start=len(expanded), num_tokens=count, key=b"", grid=grid(medium)))
        expanded += [token_id] * count
    return expanded, tuple(spans)


def _learnt(token_ids: Sequence[int], vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """Marks what follows `<|im_start|>assistant`, up to and with `<|im_end|>`."""
    opening = [vocabulary.start_id, *vocabulary.assistant_ids, vocabulary.newline_id]
    learnt = np.zeros(len(token_ids), np.bool_)
    said = False
    for index, token_id in enumerate(token_ids):
        said = said or (index >= len(opening) and list(token_ids[index - len(opening) : index]) == opening)
        learnt[index] = said
        said = said and token_id != vocabulary.end_id
    return learnt


def _constrain(
    turns: Sequence[Turn], token_ids: Sequence[int], learnt: npt.NDArray[np.bool_], tokenizer: Tokenizer
) -> tuple[tuple[int, Ints], ...]:
    """Unmarks what a constraint gives, in place; returns `Prompt.choices`."""
    starts = np.flatnonzero(learnt & ~np.roll(learnt, 1))
    choices: list[tuple[int, Ints]] = []
    answers = (turn for turn in turns if turn.role == "assistant")
    for start, turn in zip(starts.tolist(), answers, strict=False):
        if turn.learnt is None:
            continue
        end, index = 0, start
        while index < len(learnt) and learnt[index]:
            begin, end = end, end + len(tokenizer.token_text(token_ids[index]))
            learnt[index] = any(begin < last and first < end for first, last in turn.learnt)
            index += 1
        if turn.choices:
            choices.append((start, _beginnings(turn.choices, tokenizer)))
    return tuple(choices)


def _beginnings(choices: Sequence[str], tokenizer: Tokenizer) -> Ints:
    """Returns the tokens that one of the choices begins with."""
    ids = _ids(tokenizer)
    prefixes = {choice[:end] for choice in choices for end in range(1, len(choice) + 1)}
    return np.array(sorted(ids[prefix] for prefix in prefixes if prefix in ids), np.int64)


@cache
def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns every token's id by its text."""
    return {tokenizer.token_text(token_id): token_id for token_id in range(tokenizer.vocab_size)}
