"""Deltas put together are the answer, whatever the events; stop texts never leak."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.protocol import FinishReason, TokenEvent, TokenLogprobs
from glimpse.engine.text.output_processor import OutputProcessor, TextDelta
from glimpse.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer
from tests.engine.text.stopping import cut_at_first_stop

TOKENIZER = Tokenizer(make_tokenizer())
END = TOKENIZER.encode("<|im_end|>")[0]
ANY_TOKEN_IDS = st.lists(st.integers(0, TOKENIZER.vocab_size + 5), max_size=30)
TOKEN_IDS = st.one_of(ANY_TOKEN_IDS, st.text("the ée😀.", max_size=20).map(TOKENIZER.encode))
STOPS = st.lists(st.sampled_from(["the", "e", " ", "é", "😀e", "\ufffd", "th.", "..."]), max_size=3)
ENDS = st.sampled_from([FinishReason.LENGTH, FinishReason.STOP, FinishReason.CANCELLED])


def events_of(token_ids: list[int], cuts: list[int], finish: FinishReason) -> list[TokenEvent]:
    """One answer's tokens as events; each token's log-probability is minus its place in the answer."""
    # The last token comes with `finish`, as the engine sends it.
    edges = [0, *sorted(cut % max(1, len(token_ids)) for cut in cuts), len(token_ids)]
    return [
        TokenEvent(
            request_id="r",
            token_ids=token_ids[start:end],
            logprobs=[TokenLogprobs(logprob=-index, top=[(token_ids[index], -index)]) for index in range(start, end)],
            finish=finish if number == len(edges) - 2 else None,
        )
        for number, (start, end) in enumerate(pairwise(edges))
    ]


def deltas_of(processor: OutputProcessor, events: list[TokenEvent]) -> list[TextDelta]:
    """As a door does it: up to the first delta with `finish`."""
    deltas: list[TextDelta] = []
    for event in events:
        deltas.append(processor.feed(event))
        if deltas[-1].finish is not None:
            break
    return deltas


@given(token_ids=TOKEN_IDS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8), finish=ENDS)
def test_the_deltas_together_are_the_text_up_to_the_first_stop(
    token_ids: list[int], stops: list[str], cuts: list[int], finish: FinishReason
) -> None:
    whole = TOKENIZER.decode(token_ids)
    expected = cut_at_first_stop(whole, stops)
    answer = [*token_ids, END] if finish is FinishReason.STOP else token_ids
    out = ""
    for delta in (deltas := deltas_of(OutputProcessor(TOKENIZER, stop=stops), events_of(answer, cuts, finish))):
        out += delta.text
        assert expected.startswith(out)
    assert out == expected
    assert deltas[-1].stopped_by_text == (expected != whole)
    assert deltas[-1].finish is (FinishReason.STOP if expected != whole else finish)
    assert all(delta.finish is None for delta in deltas[:-1])


def test_ten_thousand_streamed_answers_are_those_that_come_whole() -> None:
    """Words of many alphabets, split characters and stray bytes; stop texts taken from the answer and made up."""
    draw = random.Random(0)
    num_stopped = 0
    for _ in range(10_000):
        token_ids = draw_answer(draw)
        stops = draw_stops(draw, TOKENIZER.decode(token_ids))
        cuts = draw.sample(range(len(token_ids) + 1), draw.randint(0, len(token_ids)))
        (whole,) = deltas_of(OutputProcessor(TOKENIZER, stop=stops), events_of(token_ids, [], FinishReason.LENGTH))
        pieces = deltas_of(OutputProcessor(TOKENIZER, stop=stops), events_of(token_ids, cuts, FinishReason.LENGTH))
        assert "".join(piece.text for piece in pieces) == whole.text
        assert (pieces[-1].finish, pieces[-1].stopped_by_text) == (whole.finish, whole.stopped_by_text)
        assert sum(piece.num_tokens for piece in pieces) == whole.num_tokens
        num_stopped += whole.stopped_by_text
    assert 1_000 < num_stopped < 9_000


def draw_answer(draw: random.Random) -> list[int]:
    """Up to 20 tokens of a text, in which now and then one is another."""
    words = (
        "the ",
        "é",
        "naïve",
        "日本語",
        "😀",
        "👩‍👩‍👧",
        "e\u0301",
        "ﬀ",
        "\n\n",
        "...",
        "🇪🇺",
        "مرحبا",
        "\ufffd",
        " ",
    )
    token_ids = TOKENIZER.encode("".join(draw.choices(words, k=draw.randint(0, 6))))[:20]
    return [draw.randrange(TOKENIZER.vocab_size) if draw.random() < 0.03 else token_id for token_id in token_ids]


def draw_stops(draw: random.Random, text: str) -> list[str]:
    starts = [draw.randrange(len(text)) for _ in range(draw.randint(0, 3))] if text else []
    taken = [text[start : start + draw.randint(1, 6)] for start in starts]
    return [stop if draw.random() < 0.6 else stop + draw.choice("x日😀") for stop in taken]


@given(token_ids=TOKEN_IDS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8), finish=ENDS)
def test_log_probabilities_are_those_of_the_tokens_in_the_text(
    token_ids: list[int], stops: list[str], cuts: list[int], finish: FinishReason
) -> None:
    answer = [*token_ids, END] if finish is FinishReason.STOP else token_ids
    deltas = deltas_of(OutputProcessor(TOKENIZER, stop=stops, logprobs=1), events_of(answer, cuts, finish))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert [token.token_id for token in tokens] == token_ids[: len(tokens)]
    assert [token.logprob for token in tokens] == [-index for index in range(len(tokens))]
    assert [token.top[0].token_id for token in tokens] == token_ids[: len(tokens)]
    if deltas[-1].stopped_by_text:
        shown = b"".join(token.bytes for token in tokens if token.token_id not in TOKENIZER.special_ids)
        text = "".join(delta.text for delta in deltas)
        assert shown.decode(errors="replace").startswith(text)
    else:
        assert len(tokens) == len(token_ids)


@given(token_ids=TOKEN_IDS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_the_number_of_tokens_does_not_depend_on_how_events_were_merged(token_ids: list[int], cuts: list[int]) -> None:
    def count(cuts: list[int]) -> int:
        events = events_of(token_ids, cuts, FinishReason.LENGTH)
        return sum(delta.num_tokens for delta in deltas_of(OutputProcessor(TOKENIZER, stop=["e"]), events))

    assert count(cuts) == count(list(range(len(token_ids))))


def test_a_stop_token_that_is_an_ordinary_one_is_not_in_the_text() -> None:
    token_ids = TOKENIZER.encode("the end.")
    (delta,) = deltas_of(OutputProcessor(TOKENIZER), events_of(token_ids, [], FinishReason.STOP))
    assert (delta.text, delta.num_tokens, delta.stopped_by_text) == ("the end", len(token_ids), False)


def test_tokens_whose_text_is_held_back_wait_with_it() -> None:
    first, second = TOKENIZER.encode("é")
    processor = OutputProcessor(TOKENIZER, stop=["éa"], logprobs=0)
    logprobs = [TokenLogprobs(logprob=-0.5)]
    deltas = [
        processor.feed(TokenEvent(request_id="r", token_ids=[token_id], logprobs=logprobs))
        for token_id in (first, second, *TOKENIZER.encode("."))
    ]
    assert [delta.text for delta in deltas] == ["", "", "é."]
    assert [len(delta.tokens) for delta in deltas] == [0, 0, 3]


@pytest.mark.parametrize("finish", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_an_answer_that_breaks_off_says_so_and_lets_out_what_was_held(finish: FinishReason) -> None:
    processor = OutputProcessor(TOKENIZER, stop=["ext"])
    held = processor.feed(TokenEvent(request_id="r", token_ids=TOKENIZER.encode("e")))
    last = processor.feed(TokenEvent(request_id="r", finish=finish))
    assert (held.text, last.text, last.finish) == ("", "e", finish)
