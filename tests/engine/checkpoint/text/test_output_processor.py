"""Tests for the output processor: deltas join to the whole text, and stop strings never appear."""

import random
from collections.abc import Collection
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.text.output_processor import Delta, OutputProcessor, prompt_token_texts
from glimpse.engine.checkpoint.text.tokenizer import Detokenizer, Tokenizer
from glimpse.engine.protocol.messages import FinishReason, TokenEvent, TokenLogprobs
from tests.checkpoints.tokenizer import make_tokenizer
from tests.engine.checkpoint.text.stopping import cut_at_first_stop, draw_stops

TOKENIZER = Tokenizer(make_tokenizer())
END = TOKENIZER.encode("<|im_end|>")[0]
ANY_TOKEN_IDS = st.lists(st.integers(0, TOKENIZER.vocab_size + 5), max_size=30)
TOKEN_IDS = st.one_of(ANY_TOKEN_IDS, st.text("the ée😀.", max_size=20).map(TOKENIZER.encode))
STOPS = st.lists(st.sampled_from(["the", "e", " ", "é", "😀e", "\ufffd", "th.", "..."]), max_size=3)
ENDS = st.sampled_from([FinishReason.LENGTH, FinishReason.STOP, FinishReason.CANCELLED])


def events_of(token_ids: list[int], cuts: list[int], finish: FinishReason) -> list[TokenEvent]:
    """A completion's tokens as events; each token's log-probability is minus its index."""
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


def deltas_of(processor: OutputProcessor, events: list[TokenEvent]) -> list[Delta]:
    """Processes the events up to the first delta with `finish`, as callers do."""
    deltas: list[Delta] = []
    for event in events:
        deltas.append(processor.feed(event))
        if deltas[-1].finish is not None:
            break
    return deltas


@given(
    token_ids=TOKEN_IDS,
    stops=STOPS,
    cuts=st.lists(st.integers(0, 30), max_size=8),
    finish=ENDS,
    include=st.booleans(),
)
def test_deltas_join_to_the_text_up_to_the_first_stop_string(
    token_ids: list[int], stops: list[str], cuts: list[int], finish: FinishReason, include: bool
) -> None:
    whole = TOKENIZER.decode(token_ids)
    expected, stopped = cut_at_first_stop(whole, stops, include=include), any(stop in whole for stop in stops)
    answer = [*token_ids, END] if finish is FinishReason.STOP else token_ids
    processor = OutputProcessor(TOKENIZER, stop=stops, include_stop=include)
    out = ""
    for delta in (deltas := deltas_of(processor, events_of(answer, cuts, finish))):
        out += delta.text
        assert expected.startswith(out)
    assert out == expected
    assert bool(deltas[-1].stop_string) == stopped
    assert not stopped or out.endswith(deltas[-1].stop_string) or not include
    assert deltas[-1].finish is (FinishReason.STOP if stopped else finish)
    assert all(delta.finish is None for delta in deltas[:-1])


@given(token_ids=TOKEN_IDS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8), min_tokens=st.integers(0, 30))
def test_stop_strings_count_from_the_least_number_of_tokens_on(
    token_ids: list[int], stops: list[str], cuts: list[int], min_tokens: int
) -> None:
    # The text that the first tokens bring, then that of each other token.
    detokenizer = Detokenizer(TOKENIZER)
    pieces = [detokenizer.feed((token_id,)) for token_id in token_ids] + [detokenizer.finish()]
    whole, num_early = "".join(pieces), len("".join(pieces[:min_tokens]))
    late = [end for end in range(num_early + 1, len(whole) + 1) if whole[:end].endswith(tuple(stops))]
    processor = OutputProcessor(TOKENIZER, stop=stops, include_stop=True, min_tokens=min_tokens)
    deltas = deltas_of(processor, events_of(token_ids, cuts, FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == (whole[: late[0]] if late else whole)
    assert bool(deltas[-1].stop_string) == bool(late)


def test_ten_thousand_streamed_completions_equal_the_whole_ones() -> None:
    """Words of many scripts, split characters and stray bytes; stop strings from the completion and others."""
    draw = random.Random(0)
    num_stopped = 0
    for _ in range(10_000):
        token_ids = draw_answer(draw)
        stops = draw_stops(draw, TOKENIZER.decode(token_ids))
        cuts = draw.sample(range(len(token_ids) + 1), draw.randint(0, len(token_ids)))
        (whole,) = deltas_of(OutputProcessor(TOKENIZER, stop=stops), events_of(token_ids, [], FinishReason.LENGTH))
        pieces = deltas_of(OutputProcessor(TOKENIZER, stop=stops), events_of(token_ids, cuts, FinishReason.LENGTH))
        assert "".join(piece.text for piece in pieces) == whole.text
        assert (pieces[-1].finish, pieces[-1].stop_string) == (whole.finish, whole.stop_string)
        assert sum(len(piece.token_ids) for piece in pieces) == len(whole.token_ids)
        assert not whole.stop_string or whole.stop_string in stops
        num_stopped += bool(whole.stop_string)
    assert 1_000 < num_stopped < 9_000


def draw_answer(draw: random.Random) -> list[int]:
    """Up to 20 tokens of a text, some of them replaced at random."""
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


def offsets_of(token_ids: list[int], *, hidden_ids: Collection[int]) -> list[int]:
    """How many whole characters come before each token."""
    detokenizer = Detokenizer(TOKENIZER, hidden_ids=hidden_ids)
    return [0, *accumulate(len(detokenizer.feed((token_id,))) for token_id in token_ids)][:-1]


@given(token_ids=TOKEN_IDS.filter(bool))
def test_tokens_of_a_prompt_have_their_places(token_ids: list[int]) -> None:
    scores = [TokenLogprobs(logprob=-1)] * (len(token_ids) - 1)
    tokens = prompt_token_texts(TOKENIZER, token_ids, scores)
    text = TOKENIZER.decode(token_ids, skip_special=False)
    assert [len(text) + token.offset for token in tokens] == offsets_of(token_ids, hidden_ids=())


@given(token_ids=TOKEN_IDS, stops=STOPS, cuts=st.lists(st.integers(0, 30), max_size=8), finish=ENDS)
def test_logprobs_are_those_of_the_tokens_in_the_text(
    token_ids: list[int], stops: list[str], cuts: list[int], finish: FinishReason
) -> None:
    answer = [*token_ids, END] if finish is FinishReason.STOP else token_ids
    deltas = deltas_of(OutputProcessor(TOKENIZER, stop=stops, logprobs=1), events_of(answer, cuts, finish))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert [token.token_id for token in tokens] == token_ids[: len(tokens)]
    assert [token.logprob for token in tokens] == [-index for index in range(len(tokens))]
    assert [token.top[0].token_id for token in tokens] == token_ids[: len(tokens)]
    assert [token.offset for token in tokens] == offsets_of(token_ids, hidden_ids=TOKENIZER.special_ids)[: len(tokens)]
    if deltas[-1].stop_string:
        shown = b"".join(token.bytes for token in tokens if token.token_id not in TOKENIZER.special_ids)
        text = "".join(delta.text for delta in deltas)
        assert shown.decode(errors="replace").startswith(text)
    else:
        assert len(tokens) == len(token_ids)


@given(token_ids=TOKEN_IDS, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_token_count_does_not_depend_on_event_boundaries(token_ids: list[int], cuts: list[int]) -> None:
    def count(cuts: list[int]) -> int:
        events = events_of(token_ids, cuts, FinishReason.LENGTH)
        return sum(len(delta.token_ids) for delta in deltas_of(OutputProcessor(TOKENIZER, stop=["e"]), events))

    assert count(cuts) == count(list(range(len(token_ids))))


def test_log_probabilities_include_those_of_a_stop_string_in_the_text() -> None:
    token_ids = TOKENIZER.encode("the end.")
    processor = OutputProcessor(TOKENIZER, stop=["end"], include_stop=True, logprobs=0)
    deltas = deltas_of(processor, events_of(token_ids, list(range(len(token_ids))), FinishReason.LENGTH))
    tokens = [token for delta in deltas for token in delta.tokens]
    assert "".join(delta.text for delta in deltas) == "the end"
    assert "".join(token.text for token in tokens).startswith("the end")
    assert len(tokens) == sum(len(delta.token_ids) for delta in deltas)


def test_leaves_an_ordinary_stop_token_out_of_the_text() -> None:
    token_ids = TOKENIZER.encode("the end.")
    (delta,) = deltas_of(OutputProcessor(TOKENIZER), events_of(token_ids, [], FinishReason.STOP))
    assert (delta.text, len(delta.token_ids), delta.stop_string) == ("the end", len(token_ids), "")


def test_withholds_tokens_together_with_their_text() -> None:
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
def test_interrupted_completion_releases_withheld_text(finish: FinishReason) -> None:
    processor = OutputProcessor(TOKENIZER, stop=["ext"])
    held = processor.feed(TokenEvent(request_id="r", token_ids=TOKENIZER.encode("e")))
    last = processor.feed(TokenEvent(request_id="r", finish=finish))
    assert (held.text, last.text, last.finish) == ("", "e", finish)
