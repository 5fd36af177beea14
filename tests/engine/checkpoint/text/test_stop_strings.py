"""Tests for stop strings: the text ends in the same place however it is split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.stop_strings import StopMatcher
from tests.engine.checkpoint.text.stopping import cut_at_first_stop

# A small alphabet, so that stop strings occur, overlap, and contain one another.
TEXTS = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 100), max_size=10), include=st.booleans())
def test_releases_the_text_up_to_the_first_stop_string(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    expected = cut_at_first_stop(text, stops, include=include)
    out = ""
    for piece in pieces_of(text, cuts):
        out += matcher.feed(piece)
        assert expected.startswith(out)
    assert out + matcher.finish() == expected
    assert bool(matcher.matched) == any(stop in text for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "deltas"),
    [
        pytest.param([], ["a", "b"], ["a", "b"], id="no stop strings"),
        pytest.param(["END"], ["say E", "N", "T"], ["say ", "", "ENT"], id="partial match is released"),
        pytest.param(["END"], ["say E", "ND it"], ["say ", ""], id="stop string and rest are dropped"),
        pytest.param(["END", "x"], ["EN", "x"], ["", "EN"], id="other stop releases withheld text"),
        pytest.param(["aab"], ["aa", "a", "b"], ["", "a", ""], id="only possible stops are withheld"),
    ],
)
def test_withholds_only_possible_stop_strings(stops: list[str], pieces: list[str], deltas: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.feed(piece) for piece in pieces] == deltas


def test_longer_of_two_stop_strings_that_end_together_wins() -> None:
    matcher = StopMatcher(["b", "ab"])
    assert matcher.feed("xab") == "x"


def test_stop_string_may_be_part_of_the_text() -> None:
    matcher = StopMatcher(["END"], include=True)
    assert [matcher.feed("say E"), matcher.feed("ND it"), matcher.finish()] == ["say ", "END", ""]


def test_releases_nothing_after_a_stop_string() -> None:
    matcher = StopMatcher(["."])
    assert [matcher.feed("a.b"), matcher.feed("c"), matcher.finish()] == ["a", "", ""]
