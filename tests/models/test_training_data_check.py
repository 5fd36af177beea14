"""Answer checks compare meaning, not wording."""

import pytest

from models.training.sample import Check
from models.training.tasks.check import (
    Agrees,
    All,
    Calls,
    Concludes,
    Counts,
    Denies,
    Describes,
    IsJson,
    Locates,
    LocatesEach,
    Mentions,
    Names,
    Reads,
    place_in,
)

RED = Names("colour", ("red",))
CIRCLE_AND_STAR = Describes(
    (
        ("large", "red", "circle", place_in("top left")),
        ("small", "blue", "star", place_in("in the centre")),
    )
)
CALL = Calls("save_text", '{"text": "CAT"}')

RIGHT: list[tuple[Check, str]] = [
    (RED, "The circle is red."),
    (RED, "RED"),
    (RED, "It's a red circle, red all over"),
    (Names("colour", ("grey",)), "The square is gray."),
    (Names("colour", ("red", "blue")), "The circle changes from red to blue."),
    (Names("colour", ("red", "blue"), ordered=False), "blue and red"),
    (Names("shape", ("cross",)), "There are crosses."),
    (Names("shape", ("ring",)), "It is a ring."),
    (Names("size", ("large",)), "It is big."),
    (Names("direction", ("left",)), "The star moves to the left."),
    (Names("picture", ("second",)), "The 2nd picture has it."),
    (Counts(3), "There are 3 triangles."),
    (Counts(3), "Three."),
    (Counts(0), "There are no stars."),
    (Counts(0), "0"),
    (Agrees(True), "Yes, there is a red square."),
    (Agrees(False), "no"),
    (Agrees(True), "The square is red, so yes."),
    (Concludes(RED), "First it is blue. Then it is red."),
    (Concludes(Agrees(False)), "Yes and no. No!"),
    (Concludes(RED), "It is red"),
    (Denies(), "There is no star in the picture."),
    (Denies(), "There isn't any star."),
    (Locates("at the top left"), "It is in the upper left corner."),
    (Locates("on the left"), "The star is on the left, in the middle."),
    (Locates("in the centre"), "In the center."),
    (Locates("at the top"), "at the top"),
    (
        LocatesEach(("at the top", "on the left")),
        "It is at the top in the first picture and on the left in the second.",
    ),
    (CIRCLE_AND_STAR, "A large red circle at the top left and a small blue star in the centre."),
    (CIRCLE_AND_STAR, "There is a little blue star in the middle, and a big red circle in the top-left corner."),
    (Reads("CAT"), 'It says "CAT".'),
    (Reads("CAT"), "cat"),
    (Reads("42"), "The number is 42."),
    (Reads("K9"), "It says: K9"),
    (Reads("CAT"), "It says “cat”."),
    (IsJson('{"shape": "circle", "n": 1}'), '{"n": 1, "shape": "circle"}'),
    (IsJson('{"n": 1}'), '```json\n{"n": 1}\n```'),
    (CALL, '<tool_call>\n{"name": "save_text", "arguments": {"text": "CAT"}}\n</tool_call>'),
    (CALL, '<tool_call>{"arguments": {"text": "CAT"}, "name": "save_text"}</tool_call>'),
    (Mentions(needed=("hello|hi",)), "Hi there!"),
    (All((RED, Names("shape", ("star",)))), "The red star came first."),
]

WRONG: list[tuple[Check, str]] = [
    (RED, "The circle is blue."),
    (RED, "The circle is red or blue."),
    (RED, "The colour is hatred."),
    (RED, ""),
    (Names("colour", ("red", "blue")), "The circle changes from blue to red."),
    (Names("colour", ("red", "blue"), ordered=False), "red"),
    (Names("shape", ("square",)), "It is a rectangle."),
    (Names("direction", ("left",)), "The star moves to the right."),
    (Names("picture", ("second",)), "Both the first and the second."),
    (Counts(3), "There are 4 triangles."),
    (Counts(3), "There are 3 or 4 triangles."),
    (Counts(3), "There are some triangles."),
    (Counts(0), "There is 1 star."),
    (Agrees(True), "No, there is no red square."),
    (Agrees(True), "There is a red square, yes and no."),
    (Agrees(True), "There is a red square."),
    (Concludes(RED), "It is red. It is blue."),
    (Concludes(RED), ""),
    (Agrees(False), "Not sure."),
    (Denies(), "The star is red."),
    (Locates("at the top left"), "It is at the top right."),
    (Locates("at the top left"), "It is at the top."),
    (Locates("in the centre"), "It is on the left."),
    (
        LocatesEach(("at the top", "on the left")),
        "It is on the left in the first picture and at the top in the second.",
    ),
    (CIRCLE_AND_STAR, "A large red circle at the top left."),
    (CIRCLE_AND_STAR, "A large red circle at the top left and a small blue star at the bottom."),
    (CIRCLE_AND_STAR, "A large blue circle at the top left and a small red star in the centre."),
    (CIRCLE_AND_STAR, "A small red circle at the top left and a large blue star in the centre."),
    (
        CIRCLE_AND_STAR,
        "A large red circle at the top left, a small blue star in the centre and a small blue star at the top.",
    ),
    (Reads("CAT"), 'It says "CAR".'),
    (Reads("CAT"), 'It says "CATS".'),
    (Reads("CAT"), 'It says "CAT" and "DOG".'),
    (Reads("42"), "The number is 421."),
    (IsJson('{"n": 1}'), '{"n": 2}'),
    (IsJson('{"n": 1}'), 'Here it is: {"n": 1}'),
    (IsJson('{"n": 1}'), '{"n": 1'),
    (IsJson("[]"), ""),
    (CALL, '{"name": "save_text", "arguments": {"text": "CAT"}}'),
    (CALL, '<tool_call>\n{"name": "save_text", "arguments": {"text": "DOG"}}\n</tool_call>'),
    (CALL, '<tool_call>\n{"name": "save_word", "arguments": {"text": "CAT"}}\n</tool_call>'),
    (CALL, "<tool_call>\nsave_text\n</tool_call>"),
    (Mentions(needed=("hello|hi",)), "This is a circle."),
    (Mentions(needed=("first",), refused=("second",)), "The first and the second."),
    (All((RED, Names("shape", ("star",)))), "The red circle came first."),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_accepts_correct_answers(check: Check, answer: str) -> None:
    assert check.right(answer)


@pytest.mark.parametrize(("check", "answer"), WRONG)
def test_refuses_wrong_answers(check: Check, answer: str) -> None:
    assert not check.right(answer)
