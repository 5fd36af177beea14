"""Tests for reasoning: its tags are found however the answer is split, and its tokens are counted exactly."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.reasoning import (
    REASONING_FORMATS,
    ReasoningMeter,
    ReasoningParser,
    ReasoningSplit,
    find_reasoning_format,
)
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.sampling_params import ReasoningTags
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, make_tokenizer

TAGS = ReasoningTags(opening="<think>", closing="</think>")
OPEN = ReasoningTags(opening="<think>", closing="</think>", is_open=True)
CHANNEL = ReasoningTags(opening="<|channel>thought", closing="<channel|>")
ANSWER = ReasoningTags(opening="<think>", closing="</think>", answer="<answer>")
EXACT = ReasoningTags(opening="<think>", closing="</think>", strips_answer=False)
PLAIN = Tokenizer(make_tokenizer())
"""Spells the tags with several tokens."""
TAGGED = Tokenizer(make_tokenizer((*SPECIAL_TOKENS, "<think>", "</think>")))
QWEN3, DEEPSEEK = REASONING_FORMATS["qwen3"], REASONING_FORMATS["deepseek_r1"]

READINGS = [
    # tags, answer, reasoning, text
    (TAGS, "<think>\nSo ä.\n</think>\n\nYes.", "So ä.", "Yes."),
    (TAGS, "\n<think>a</think>b", "a", "b"),
    (TAGS, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (TAGS, "<think>a < b </ think </thi\n\nc</think>d", "a < b </ think </thi\n\nc", "d"),
    (TAGS, "<think>a</</think>b", "a</", "b"),
    (TAGS, "<think>a</think>b</think><think>c", "a", "b</think><think>c"),
    (TAGS, "<think>cut \n", "cut", ""),
    (TAGS, "<think>cut </thi", "cut </thi", ""),
    (TAGS, "<think>cut</think>\n", "cut", ""),
    (TAGS, " Yes.\n", "", " Yes.\n"),
    (TAGS, "<thin", "", "<thin"),
    (TAGS, "Yes <think>no</think>", "", "Yes <think>no</think>"),
    (TAGS, " \n", "", " \n"),
    (OPEN, "\nSo.\n</think>\n\nYes.", "So.", "Yes."),
    (OPEN, "<think>\nSo.</think>Yes.", "So.", "Yes."),
    (OPEN, "<thin", "<thin", ""),
    (OPEN, "</think>Yes.", "", "Yes."),
    (EXACT, "<think>a</think>\n Yes.", "a", "\n Yes."),
    (EXACT, "<think>a</think>", "a", ""),
    (CHANNEL, "<|channel>thought\nSo <|channel.\n<channel|>Yes.", "So <|channel.", "Yes."),
    (CHANNEL, "<|channel>thought\n<channel|>Yes <channel|>.", "", "Yes <channel|>."),
    (ANSWER, "<think>a</think>\n<answer> Yes.", "a", "Yes."),
    (ANSWER, "<think>a</think><ans", "a", "<ans"),
    (ANSWER, "<think>a</think><b><answer>", "a", "<b><answer>"),
    (ANSWER, "<answer>Yes.", "", "<answer>Yes."),
    (CHANNEL, "<|channel>final\nYes.", "", "<|channel>final\nYes."),
]


def read(tags: ReasoningTags, *pieces: str) -> tuple[str, str]:
    parser = ReasoningParser(tags)
    splits: list[ReasoningSplit] = [*map(parser.feed, pieces), parser.finish()]
    return "".join(split.reasoning for split in splits), "".join(split.text for split in splits)


@pytest.mark.parametrize(("tags", "answer", "reasoning", "text"), READINGS)
def test_separates_reasoning_from_text_wherever_the_answer_is_cut(
    tags: ReasoningTags, answer: str, reasoning: str, text: str
) -> None:
    assert read(tags, answer) == read(tags, *answer) == (reasoning, text)
    for cut in range(len(answer)):
        assert read(tags, answer[:cut], answer[cut:]) == (reasoning, text)


PARTS = st.sampled_from(
    ["<think>", "</think>", "<answer>", "<", "</", "th", "think>", "ans", "\n", " ", "a", "ä🦉", ">"]
)


@given(
    st.sampled_from([TAGS, OPEN, EXACT, ANSWER]),
    st.lists(PARTS, max_size=12).map("".join),
    st.lists(st.integers(0, 40), max_size=6),
)
@example(OPEN, "<think>\na", [7])
def test_result_does_not_depend_on_how_the_answer_is_split(tags: ReasoningTags, answer: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(answer)) for cut in cuts), len(answer)]
    pieces = [answer[start:end] for start, end in itertools.pairwise(bounds)]
    assert read(tags, *pieces) == read(tags, answer)


@given(st.lists(PARTS, max_size=12).map("".join))
def test_nothing_but_tags_and_white_space_beside_them_is_lost(answer: str) -> None:
    reasoning, text = read(TAGS, answer)
    if answer.lstrip().startswith("<think>"):
        rest = answer.lstrip().removeprefix("<think>")
        before, tag, after = rest.lstrip().partition("</think>")
        while before.startswith("<think>"):
            before = before.removeprefix("<think>").lstrip()
        assert (reasoning, text) == (before.rstrip(), after.lstrip() if tag else "")
    else:
        assert (reasoning, text) == ("", answer)


@pytest.mark.parametrize("tokenizer", [PLAIN, TAGGED], ids=["spelled tags", "tags as tokens"])
@pytest.mark.parametrize(
    ("tags", "before", "reasoning", "after"),
    [
        (TAGS, "<think>", "\nthe end\n", "</think>\n\nYes, the"),
        (TAGS, "<think>", "", "</think>Yes"),
        (OPEN, "", "in the", "</think>Yes"),
        (TAGS, "<think>", "the on", ""),
        (TAGS, "", "", "the other"),
    ],
)
def test_counts_the_tokens_between_the_tags(
    tokenizer: Tokenizer, tags: ReasoningTags, before: str, reasoning: str, after: str
) -> None:
    pieces = [tokenizer.encode(part) for part in (before, reasoning, after)]
    meter = ReasoningMeter(tags)
    for token_id in (token_id for piece in pieces for token_id in piece):
        meter.append(tokenizer.token_bytes(token_id))
    assert meter.num_tokens == len(pieces[1])
    assert meter.is_reasoning == (bool(before) and not after)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages }}", None),
        ("{{ '<think>' }}", None),
        ("{% if '</think>' in content %}", "qwen3"),
        ("{{ '<｜Assistant｜>' }}{{ content.split('</think>')[-1] }}", "deepseek_r1"),
        ("{{ '<｜Assistant｜>' }}", None),
        ("{{ '<|channel>thought\n' + thought + '<channel|>' }}", "gemma4"),
    ],
)
def test_detects_the_format_of_a_template(template: str, name: str | None) -> None:
    assert find_reasoning_format(template) == (None if name is None else REASONING_FORMATS[name])


def test_format_name_overrides_the_template() -> None:
    assert find_reasoning_format("{{ messages }}", "qwen3") is QWEN3
    assert find_reasoning_format("</think>", "none") is None
    with pytest.raises(ValueError, match="of auto, none, deepseek_r1, glm45, qwen3, gemma4, got 'x'"):
        find_reasoning_format("", "x")


@pytest.mark.parametrize("tokenizer", [PLAIN, TAGGED], ids=["spelled tags", "tags as tokens"])
@pytest.mark.parametrize(
    ("prompt", "qwen3", "deepseek"),
    [
        # whether an answer to the prompt begins inside the reasoning; None: its reasoning has ended
        ("<|im_start|>assistant\n", False, True),
        ("<|im_start|>assistant\n<think>\n", True, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, None),
        ("<think>a</think>b<|im_end|>\n<|im_start|>assistant\n", False, True),
    ],
)
def test_prompt_says_whether_the_reasoning_has_begun(
    tokenizer: Tokenizer, prompt: str, qwen3: bool | None, deepseek: bool | None
) -> None:
    token_ids = tokenizer.encode(prompt)
    for form, is_open in ((QWEN3, qwen3), (DEEPSEEK, deepseek)):
        tags = form.tags_after(token_ids, tokenizer)
        assert (None if tags is None else tags.is_open) == is_open


def test_continued_message_has_reasoning_only_if_it_ends_with_the_opening_tag() -> None:
    assert DEEPSEEK.tags_continuing(PLAIN.encode("Yes, <think> and"), PLAIN) is None
    tags = DEEPSEEK.tags_continuing(PLAIN.encode("<think>\n"), PLAIN)
    assert tags is not None
    assert tags.is_open


def test_tags_that_are_special_tokens_have_ids() -> None:
    tags = QWEN3.tags_after(TAGGED.encode("the"), TAGGED)
    assert tags is not None
    assert tags.special_ids == (("<think>", *TAGGED.encode("<think>")), ("</think>", *TAGGED.encode("</think>")))
    plain = QWEN3.tags_after(PLAIN.encode("the"), PLAIN)
    assert plain is not None
    assert plain.special_ids == ()


def test_a_tag_may_begin_with_a_special_token() -> None:
    tokenizer = Tokenizer(make_tokenizer((*SPECIAL_TOKENS, "<|channel>", "<channel|>")))
    form = REASONING_FORMATS["gemma4"]
    tags = form.tags_after(tokenizer.encode("<|im_start|>model\n"), tokenizer)
    assert tags is not None
    assert not tags.is_open
    assert dict(tags.special_ids) == {tag: tokenizer.encode(tag)[0] for tag in ("<|channel>", "<channel|>")}
    assert form.tags_after(tokenizer.encode("model\n<|channel>thought\n<channel|>"), tokenizer) is None
