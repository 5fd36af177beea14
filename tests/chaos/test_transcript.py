"""The campaign finds each kind of bad ending in scripted responses, and nothing in good ones."""

import asyncio
from collections.abc import Callable

import pytest

from tests.chaos.calls import Call, record
from tests.chaos.transcript import Outcome, Transcript, Verdict

RIGHT = "You are welcome."
PIECES = ("You", " are", " welcome", ".")


def transcript(*pieces: str, ends: bool = True) -> Transcript:
    """A stream of these pieces, and its end."""
    made = Transcript()
    for piece in pieces:
        made.text(piece)
    if ends:
        made.finish()
        made.done()
    return made


def verdict(made: Transcript) -> Verdict:
    return made.verdict(RIGHT)


def test_answer_that_cannot_be_read_is_wrong() -> None:
    async def send(_: Call) -> None:
        raise KeyError("choices")

    call = asyncio.run(record(send, transcript(), seconds=5))
    assert call.transcript.verdict() == Verdict(outcome=Outcome.WRONG, detail="KeyError: 'choices'")


def test_complete_answer_is_ok() -> None:
    assert verdict(transcript(*PIECES)).outcome is Outcome.OK


def test_stream_without_an_ending_is_lost() -> None:
    assert verdict(transcript(*PIECES, ends=False)).outcome is Outcome.LOST


def test_stream_without_done_is_lost() -> None:
    made = transcript(*PIECES, ends=False)
    made.finish()
    assert verdict(made) == Verdict(outcome=Outcome.LOST, detail="1 of 1 finish reasons, no [DONE], no error")


def test_done_without_a_finish_reason_is_lost() -> None:
    made = transcript(*PIECES, ends=False)
    made.done()
    assert verdict(made).outcome is Outcome.LOST


def test_choice_without_a_finish_reason_is_lost() -> None:
    made = Transcript(num_choices=2)
    made.finish(1)
    made.done()
    assert made.verdict().outcome is Outcome.LOST


def test_broken_connection_in_a_stream_is_broken() -> None:
    made = transcript(*PIECES, ends=False)
    made.broke("reset by peer")
    assert verdict(made) == Verdict(outcome=Outcome.BROKEN, detail="reset by peer")


def test_chunk_that_came_twice_is_found() -> None:
    assert verdict(transcript("You", " are", " are", " welcome", ".")).outcome is Outcome.TWICE


def test_other_text_is_wrong() -> None:
    made = verdict(transcript("You", " are", " late", "."))
    assert made == Verdict(outcome=Outcome.WRONG, detail=f"expected {RIGHT!r}, got 'You are late.'")


def test_missing_text_is_wrong() -> None:
    assert verdict(transcript(*PIECES[1:])).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "addition",
    [Transcript.done, Transcript.finish, lambda made: made.text(" more"), lambda made: made.error("overloaded")],
    ids=["[DONE]", "finish reason", "text", "error"],
)
def test_something_after_the_end_is_a_second_ending(addition: Callable[[Transcript], None]) -> None:
    made = transcript(*PIECES)
    addition(made)
    assert verdict(made).outcome is Outcome.TWICE


def test_done_after_an_error_is_a_second_ending() -> None:
    made = transcript(*PIECES, ends=False)
    made.error("engine_unavailable")
    made.done()
    assert verdict(made).outcome is Outcome.TWICE


async def test_request_without_an_ending_hangs() -> None:
    async def send(call: Call) -> None:
        call.text("You")
        await asyncio.Event().wait()

    call = await record(send, Transcript(), seconds=0.01)
    assert verdict(call.transcript) == Verdict(outcome=Outcome.HUNG, detail="1 pieces had come")


async def test_connection_error_breaks_a_request() -> None:
    async def send(call: Call) -> None:
        raise ConnectionResetError("peer")

    call = await record(send, Transcript(), seconds=1)
    assert verdict(call.transcript).outcome is Outcome.BROKEN
