"""Streamed answers through Envoy equal unary answers, for any text and any cut."""

import random
import unicodedata
from typing import Any

from tests.e2e.requests import CHAT, ask
from tests.e2e.stack import Stack
from tests.engine.checkpoint.text.stopping import cut_at_first_stop, draw_stops
from tests.engine.replies import reply_with

NUM_ANSWERS = 100
WORDS = (
    "the ",
    "é",
    "naïve ",
    "日本語",
    "😀",
    "👩‍👩‍👧 ",
    "e\u0301",
    "\n\n",
    "...",
    "🇪🇺",
    "مرحبا",
    '"',
    "\\",
    "</s>",
    "\u2028",
)


def test_streams_equal_unary_answers(echo_stack: Stack) -> None:
    """Requests each answer unary and streamed, with different seeds, so that the engine cuts it in other places."""
    draw = random.Random(0)
    complete: set[bool] = set()
    for _ in range(NUM_ANSWERS):
        # The tokenizer normalizes to NFC, like all of its family.
        text = unicodedata.normalize("NFC", "".join(draw.choices(WORDS, k=draw.randint(0, 20))))
        stops = draw_stops(draw, text)
        question: dict[str, Any] = {"messages": [{"role": "user", "content": f"Say {reply_with(text)}"}], "stop": stops}
        seed = draw.randrange(1 << 31)
        whole = echo_stack.post(CHAT, question | {"seed": seed})["choices"][0]
        events = ask(echo_stack, CHAT, **question, seed=seed + 1, stream=True).events
        pieces = [event["choices"][0] for event in events]
        assert "".join(piece["delta"].get("content", "") for piece in pieces) == whole["message"]["content"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [whole["finish_reason"]]
        assert whole["message"]["content"] == cut_at_first_stop(text, stops)
        complete.add(whole["message"]["content"] == text)
    assert complete == {True, False}
