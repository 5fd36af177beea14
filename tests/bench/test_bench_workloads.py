"""What the load generator asks, and how it reads what comes back."""

import io
import random

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving.clients import AskError, read_answer, read_events
from bench.serving.workloads import WORKLOADS, Prompts, Sizes, poisson_arrivals, prefix_session

PROMPTS = Prompts(overhead_tokens=20, tokens_per_word=1)
SIZES = Sizes(prompt_tokens=100, side=56, num_turns=6)


@given(st.integers(1, 10_000), st.floats(0, 60), st.floats(0.5, 3))
def test_so_many_words_come_to_so_many_tokens(num_tokens: int, overhead: float, per_word: float) -> None:
    prompts = Prompts(overhead_tokens=overhead, tokens_per_word=per_word)
    words = prompts.num_words(num_tokens)
    assert words >= 1
    assert words == 1 or abs(overhead + words * per_word - num_tokens) <= per_word / 2 + 1e-6


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_seed_gives_the_same_questions_and_its_sessions_differ(workload: str) -> None:
    first, again = (WORKLOADS[workload](random.Random(7), PROMPTS, SIZES) for _ in range(2))
    assert first == again
    draw = random.Random(7)
    texts = [WORKLOADS[workload](draw, PROMPTS, SIZES)[0].text for _ in range(8)]
    assert len(set(texts)) == 8


def test_a_text_has_the_words_that_its_tokens_ask_for() -> None:
    (question,) = WORKLOADS["text"](random.Random(1), PROMPTS, SIZES)
    assert len(question.text.split()) == 80


def test_a_prefix_is_shared_and_the_first_question_comes_again() -> None:
    cold, other, again = prefix_session(random.Random(1), PROMPTS, SIZES)
    assert cold.image == other.image == again.image
    assert cold.text == again.text != other.text
    assert cold.text.split()[:68] == other.text.split()[:68]


def test_a_chat_shows_its_image_once_and_then_goes_on() -> None:
    first, *later = WORKLOADS["chat"](random.Random(1), PROMPTS, SIZES)
    assert first.image is not None
    assert len(later) == 5
    assert all(question.follows and question.image is None for question in later)


def test_images_are_jpegs_of_their_size() -> None:
    (question,) = WORKLOADS["image"](random.Random(1), PROMPTS, SIZES)
    assert question.image is not None
    shown = PIL.Image.open(io.BytesIO(question.image))
    assert (shown.format, shown.size) == ("JPEG", (56, 56))


def test_arrivals_ascend_at_their_rate() -> None:
    arrivals = poisson_arrivals(random.Random(3), per_second=5.0, count=2000)
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(400, rel=0.1)


def test_an_event_comes_when_its_last_byte_does() -> None:
    pieces = [(1.0, b'data: {"a": 1}\n\nda'), (2.0, b'ta: {"a": 2}'), (3.0, b"\n\ndata: [DONE]\n\n")]
    assert list(read_events(pieces)) == [(1.0, {"a": 1}), (3.0, {"a": 2})]


def test_an_answer_counts_its_text_from_usage() -> None:
    chunks = [
        (1.0, {"choices": [{"delta": {"role": "assistant", "content": ""}}]}),
        (1.5, {"choices": [{"delta": {"content": "Two "}}]}),
        (1.6, {"choices": [{"delta": {"content": "words"}}], "usage": None}),
        (1.7, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}),
    ]
    answer = read_answer(1.0, chunks)
    assert (answer.text, answer.token_times) == ("Two words", (1.5, 1.6))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (9, 3, 0)
    assert answer.first_token_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("chunks", [[], [(1.0, {"error": {"message": "no"}})]])
def test_an_answer_without_text_is_a_failure(chunks: list[tuple[float, dict[str, object]]]) -> None:
    with pytest.raises(AskError):
        read_answer(0.0, chunks)
