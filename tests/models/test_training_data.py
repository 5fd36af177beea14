"""Properties that hold for the training samples of every task, for any seed."""

import json
import random
import re
from collections import Counter
from itertools import islice

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from models.training.batching.packing import pack
from models.training.batching.prompts import sample_prompt
from models.training.batching.vocabulary import load_vocabulary
from models.training.mix import CHAT_TEMPLATE, TASKS, corpus, draw_sample, samples
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample, SampleImage, SampleVideo
from models.training.tasks import (
    as_json,
    calling,
    chat,
    constrained,
    out_of_scope,
    pairs,
    reading,
    templates,
    video_tasks,
)
from models.training.tasks.check import Agrees
from models.training.tasks.words import HELD_OUT_WORDS, WORDS, draw_text

SEEDS = st.integers(0, 2**32)


def draw(task: str, seed: int, *, held_out: bool = False) -> Sample:
    return draw_sample(task, random.Random(f"{task} {seed}"), held_out=held_out, largest_side=168)


def images(sample: Sample) -> list[SampleImage]:
    return [part for turn in sample.turns for part in turn.content if isinstance(part, SampleImage)]


def videos(sample: Sample) -> list[SampleVideo]:
    return [part for turn in sample.turns for part in turn.content if isinstance(part, SampleVideo)]


def texts(sample: Sample) -> list[str]:
    return [part for turn in sample.turns for part in turn.content if isinstance(part, str)]


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=40)
@given(seed=SEEDS, held_out=st.booleans())
def test_check_accepts_the_training_answer(task: str, seed: int, held_out: bool) -> None:
    sample = draw(task, seed, held_out=held_out)
    assert sample.check.right(sample.answer)
    assert not sample.check.right("Qwxz vbnp")


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=30)
@given(seed=SEEDS)
def test_roles_alternate_and_the_last_answer_is_short(task: str, seed: int) -> None:
    sample = draw(task, seed)
    roles = [turn.role for turn in sample.turns if turn.role != "system"]
    assert roles[::2] == [role for role in roles if role != "assistant"]
    assert set(roles[1::2]) == {"assistant"}
    assert all(turn.content and isinstance(turn.content[0], str) for turn in sample.turns if turn.role == "assistant")
    assert 0 < len(sample.answer) < 340
    said = [text.replace("\n  ", "\n") for text in texts(sample)]  # JSON may be indented
    assert not any(mark in text for text in said for mark in ("{the}", "|", "()", "  "))


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=30)
@given(seed=SEEDS)
def test_media_sizes_fit_the_model(task: str, seed: int) -> None:
    sample = draw(task, seed)
    for image in images(sample):
        height, width, channels = image.pixels.shape
        assert image.pixels.dtype == np.uint8
        assert channels == 3
        assert height % 28 == width % 28 == 0
        assert 56 <= height <= 168
        assert 56 <= width <= 168
    for video in videos(sample):
        frames, height, width, _ = video.frames.shape
        assert frames in (2, 4, 6, 8)
        assert frames == len(video.objects)
        assert height % 28 == width % 28 == 0


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=30)
@given(seed=SEEDS)
def test_objects_lie_inside_the_image(task: str, seed: int) -> None:
    for image in images(draw(task, seed)):
        height, width, _ = image.pixels.shape
        for seen in image.objects:
            x0, y0, x1, y1 = seen.box
            assert -2 <= x0 < seen.cx < x1 <= width + 2
            assert -2 <= y0 < seen.cy < y1 <= height + 2


@pytest.mark.parametrize("task", sorted(set(TASKS) - {"json", "tool", "schema"}))
@given(seed=SEEDS, held_out=st.booleans())
def test_templates_are_filled_and_plurals_are_correct(task: str, seed: int, held_out: bool) -> None:
    for text in texts(draw(task, seed, held_out=held_out)):
        assert not set("{}").intersection(text)
        assert "crosss" not in text


@pytest.mark.parametrize("task", TASKS)
def test_sample_is_a_pure_function_of_its_seed(task: str) -> None:
    one, again, other = draw(task, 1), draw(task, 1), draw(task, 2)
    assert texts(one) == texts(again)
    assert one.tools == again.tools
    for first, second in zip(images(one), images(again), strict=True):
        assert np.array_equal(first.pixels, second.pixels)
        assert first.objects == second.objects
    for first, second in zip(videos(one), videos(again), strict=True):
        assert np.array_equal(first.frames, second.frames)
    assert texts(one) != texts(other) or len(images(one) + videos(one)) > 0


def test_stream_depends_on_seed_worker_and_split() -> None:
    def opening(seed: int, worker: int, held_out: bool) -> list[str]:
        return [text for sample in islice(samples(seed, worker, held_out=held_out), 12) for text in texts(sample)]

    streams = [opening(0, 0, False), opening(1, 0, False), opening(0, 1, False), opening(0, 0, True)]
    assert opening(0, 0, False) == streams[0]
    assert len({tuple(stream) for stream in streams}) == len(streams)


def test_task_frequencies_match_their_weights() -> None:
    number = 1500
    drawn = Counter(sample.task for sample in islice(samples(3, largest_side=56 * 2), number))
    total = sum(TASKS.values())
    for task, weight in TASKS.items():
        assert abs(drawn[task] / number - weight / total) < 0.04, task


def test_images_have_varied_sizes_and_aspect_ratios() -> None:
    rng = random.Random(0)
    turns = [turn for _ in range(600) for turn in draw_sample("shape", rng).turns]
    shapes = [part.pixels.shape for turn in turns for part in turn.content if isinstance(part, SampleImage)]
    longest = [max(shape[:2]) for shape in shapes]
    assert sum(side <= 168 for side in longest) > 0.6 * len(longest)
    assert sum(side >= 224 for side in longest) > 0.08 * len(longest)
    assert any(max(shape[:2]) >= 3 * min(shape[:2]) for shape in shapes)


@pytest.mark.parametrize("task", ["yes_no"])
def test_yes_and_no_are_balanced(task: str) -> None:
    checks = [draw(task, seed).check for seed in range(600)]
    yes = [check.yes for check in checks if isinstance(check, Agrees)]
    assert len(yes) == len(checks)
    assert 0.42 < sum(yes) / len(yes) < 0.58


def test_counts_cover_zero_to_six() -> None:
    answers = Counter(re.findall(r"There are no|\d", draw("count", seed).answer)[-1] for seed in range(600))
    assert all(answers[number] > 12 for number in ("There are no", "1", "2", "3", "4", "5", "6"))


@pytest.mark.parametrize("task", ["small_talk", "outside"])
def test_small_talk_may_have_no_image(task: str) -> None:
    assert any(not images(draw(task, seed)) for seed in range(20))


def test_only_the_tool_task_has_tools() -> None:
    assert all(bool(draw(task, 0).tools) == (task == "tool") for task in TASKS)


def test_tool_calls_match_the_offered_tools() -> None:
    for seed in range(60):
        sample = draw("tool", seed)
        names = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in sample.tools}
        calls = [text for text in texts(sample) if text.startswith("<tool_call>")]
        for call in calls:
            document = json.loads(call.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert set(document["arguments"]) == set(names[document["name"]])


def test_held_out_words_are_not_trained_on() -> None:
    assert not set(WORDS) & set(HELD_OUT_WORDS)
    assert not set(calling.CITIES) & set(calling.HELD_OUT_CITIES)
    assert all(len(word) <= 8 and word.islower() for word in (*WORDS, *HELD_OUT_WORDS))


ALL_TEMPLATES = [
    found
    for module in (templates, reading, pairs, video_tasks, as_json, calling, constrained, out_of_scope)
    for found in vars(module).values()
    if isinstance(found, Templates) and found not in (templates.ONE, templates.FOLLOWING)  # sentence fragments
] + [topic.questions for topic in chat.TOPICS]


@pytest.mark.parametrize("found", ALL_TEMPLATES)
def test_held_out_templates_are_not_trained_on(found: Templates) -> None:
    assert found.learnt
    assert found.held_out
    assert not set(found.learnt) & set(found.held_out)


@pytest.mark.parametrize("held_out", [False, True])
def test_drawn_texts_are_short_and_alphanumeric(held_out: bool) -> None:
    rng = SampleRng(source=random.Random(0), held_out=held_out)
    drawn = [draw_text(rng) for _ in range(500)]
    assert all(1 <= len(text) <= 8 and text.isalnum() and text.isascii() for text in drawn)
    assert sum(len(text) <= 4 for text in drawn) > 0.7 * len(drawn)


def test_tokenizer_corpus_includes_tool_text() -> None:
    found = set(corpus(0, num_samples=400))
    assert "I only know simple shapes, colours, digits and short words." in found
    assert any("</tools>" in text for text in found)
    assert any(text.startswith('{"name": ') for text in found)
    assert "<|im_start|>" not in " ".join(found)
    assert "<|im_start|>" in CHAT_TEMPLATE.read_text(encoding="utf-8")


@pytest.mark.parametrize("held_out", [False, True])
def test_constrained_answers_match_their_grammar(held_out: bool) -> None:
    for seed in range(60):
        sample = draw("schema", seed, held_out=held_out)
        assert sample.grammar is not None
        jsonschema.validate(json.loads(sample.answer), json.loads(sample.grammar.text))
        sample = draw("choice", seed, held_out=held_out)
        assert sample.grammar is not None
        assert sample.answer in json.loads(sample.grammar.text)


def test_of_constrained_answers_only_values_are_learnt() -> None:
    vocabulary = load_vocabulary(DEFAULT_MODEL)
    for seed in range(60):
        sample = draw("schema", seed, held_out=True)
        prompt = sample_prompt(sample, vocabulary)
        learnt = vocabulary.tokenizer.decode(prompt.token_ids[prompt.learnt].tolist(), skip_special=False)
        values = list(json.loads(sample.answer).values())
        assert learnt == '{"' + '",'.join(values) + '"}'


def test_a_choice_begins_among_the_choices_alone() -> None:
    vocabulary = load_vocabulary(DEFAULT_MODEL)
    batch = pack([sample_prompt(draw("choice", seed), vocabulary) for seed in range(20)])
    assert len(batch.choices) >= 20
    letters = {
        index for index in range(vocabulary.tokenizer.vocab_size) if vocabulary.tokenizer.token_text(index).isalpha()
    }
    for answer, ids in batch.choices:
        assert batch.targets[answer] in ids
        assert letters.issuperset(ids.tolist())
