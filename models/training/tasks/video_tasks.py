"""Tasks about one video: which way something moves, how its colour changes, what comes first."""

from dataclasses import replace

from models.training.drawing.scene import Scene, Thing
from models.training.drawing.videos import (
    DIRECTIONS,
    draw_num_frames,
    draw_video,
    draw_video_scene,
    move,
    recolour,
    switch,
)
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample, SampleVideo
from models.training.tasks.check import Agrees, All, Concludes, Denies, Names
from models.training.tasks.phrases import concluded, named, sentence
from models.training.tasks.talk import Exchange, conversation

_VIDEO = "(video|clip|video|clip|film)"

DIRECTION = Templates(
    learnt=(
        "(Which|What) way does the {the} (move|go)?",
        "(Which|What) way is the {the} (moving|going)?",
        "In (which|what) direction does the {the} (move|go|travel)?",
        "(Where|Which way) does the {the} (move|go)( to|)?",
        f"How does the {{the}} move (in (this|the) {_VIDEO}|)?",
        "What is the direction of the {the}'s (motion|movement)?",
        "What does the {the} do?",
        "(Tell me|Say) (which way the {the} moves|in which direction the {the} goes).",
        "Is the {the} moving (left or right|up or down|left, right, up or down)?",
        "(Can|Could) you (say|see|tell me) (which way|in which direction|where) the {the} (moves|goes)?",
        f"(To|Towards) (which|what) (side|direction) does the {{the}} (go|travel) (in the {_VIDEO}|)?",
        "(Which|What) direction does the {the} (have|take|move in)?",
        "Where is the {the} (going|travelling|headed)?",
        f"(I want|I would like) to know (where|which way) the {{the}} (moves|goes) (in the {_VIDEO}|).",
        "How would you describe the (motion|movement) of the {the}?",
    ),
    held_out=(
        "What is the {the}'s direction?",
        f"Towards which side does the {{the}} move in this {_VIDEO}?",
        "Where is the {the} moving?",
    ),
)
HAPPENS = Templates(
    learnt=(
        f"What (happens|is happening) (in (this|the) {_VIDEO}|here|)?",
        f"(Describe|Please describe) (this|the) {_VIDEO}.",
        f"What (do you see|can you see|is shown|is to be seen) in (this|the) {_VIDEO}?",
        f"What (is in|is shown in) (this|the) {_VIDEO}?",
        f"What does (this|the) {_VIDEO} show?",
        f"What (is going on|changes)( in this {_VIDEO}| here|)?",
        f"(Tell me|Say|Can you tell me) what (is happening|goes on|you see) (in (this|the) {_VIDEO}|here|).",
        f"What (goes on|takes place|is there to see) in (this|the) {_VIDEO}?",
        f"(Watch|Look at) (this|the) {_VIDEO} and (describe it|say what happens).",
    ),
    held_out=(f"Tell me what happens in the {_VIDEO}.", "What goes on here?"),
)
DOES_MOVE = Templates(
    learnt=(
        "Does the {the} (move|go) {way}?",
        "Is the {the} (moving|going) {way}?",
        f"Does the {{the}} move {{way}} in (this|the) {_VIDEO}?",
        "(Is it true|Do you agree|Can you confirm) that the {the} (moves|goes) {way}?",
        "(Would|Could) you say that the {the} (goes|is moving) {way}?",
        "The {the} (moves|goes) {way}, (right|yes or no)?",
    ),
    held_out=("Would you say the {the} moves {way}?",),
)
COLOUR_CHANGE = Templates(
    learnt=(
        "(How|In what way) does the (colour of the {shape}|{shape}'s colour|colour) change?",
        "(What|Which) colour does the {shape} (change to|become|turn|turn into)?",
        "What (colour change|change of colour) do you see?",
        "How does the {shape} change( its colour|)?",
        f"(What|Which) colours does the {{shape}} have in (this|the) {_VIDEO}?",
        f"What happens (to|with) the (colour|{{shape}}|colour of the {{shape}}) (in the {_VIDEO}|)?",
        "What changes?",
        f"(Describe|Tell me|Say) (how the {{shape}} changes|the change of colour) (in the {_VIDEO}|).",
        "(From what|From which) colour does the {shape} change, and to which?",
        "(Can|Could) you (say|see) how the colour (of the {shape}|) changes?",
        "Which two colours does the {shape} have?",
    ),
    held_out=("Describe how the colour changes.", "From which colour to which does the {shape} change?"),
)
CHANGES_COLOUR = Templates(
    learnt=(
        "Does the {shape} change (its colour|colour)?",
        "Does the colour (of the {shape}|) (change|stay the same|remain the same)?",
        f"Is there a change of colour (in this {_VIDEO}|)?",
        "(Did|Does|Will) the {shape} (become|get|take) another colour?",
        "(Did you see|Was there|Is there) a change in the {shape}'s colour?",
        "Is the {shape} (of another|of a different) colour at the end?",
        "(Did|Has) the colour of the {shape} (change|changed)?",
        f"Has (anything|something) changed its colour (in this {_VIDEO}|here|)?",
        "(Tell me if|Tell me whether|I want to know if) the {shape} changes colour.",
    ),
    held_out=("Has the {shape} changed its colour?",),
)
COLOUR_THEN = Templates(
    learnt=(
        "(What|Which) colour (is|has) the {shape} (at|in) the {then}?",
        "What is the colour of the {shape} at the {then}?",
        f"What colour is the {{shape}} at the {{then}} of the {_VIDEO}?",
    ),
    held_out=("At the {then}, what colour is the {shape}?",),
)
FIRST = Templates(
    learnt=(
        "(What|Which) (comes|came|appears|appeared|is shown|was) first?",
        "(What|Which) (object|shape|thing) (comes|came|appears|is seen|is shown) first?",
        f"What do you see first (in (this|the) {_VIDEO}|)?",
        "(What|Which) (came|comes) first, the {one} or the {other}?",
        f"What is (shown|seen|there) at the (beginning|start) (of the {_VIDEO}|)?",
        f"With what does the {_VIDEO} (begin|start)?",
        f"(Tell me|Say|Can you tell me) (what|which one) (comes|appears) first (in the {_VIDEO}|).",
        "What is the first (object|shape|one) (that you see|in it|)?",
        "(What|Which thing) (do you see|can be seen|is there) (first|earlier|in the beginning)?",
        "(Which|What) is the (earlier|first) (thing|object|one)?",
        "(Was it|Is it) the {one} or the {other} that (came|comes|is) first?",
    ),
    held_out=("What is the first thing (to be seen|that appears)?", "Was the {one} or the {other} first?"),
)
LAST = Templates(
    learnt=(
        "(What|Which) (comes|came|appears|appeared|is shown|was) (last|second|later)?",
        "(What|Which) (object|shape|thing) (comes|came|appears|is shown) (last|second|later)?",
        "What (comes|came) after (the {first}|that)?",
        f"What is (shown|seen|there) at the end (of the {_VIDEO}|)?",
        f"With what does the {_VIDEO} end?",
        "(What|Which) came (last|later), the {one} or the {other}?",
        f"(Tell me|Say|Can you tell me) (what|which one) (comes|appears) last (in the {_VIDEO}|).",
        "What is the last (object|shape|one) (that you see|in it|)?",
        "(What|Which thing) (do you see|can be seen|is there) (later|last|in the end)?",
        "(Which|What) is the (later|second) (thing|object|one)?",
        f"(What|Which thing) (does the {_VIDEO} show|do you see|is seen) (last|later)?",
    ),
    held_out=("What is the last thing (to be seen|that appears)?", "What appears later?"),
)

WAYS = {
    "left": ("left", "to the left", "leftwards"),
    "right": ("right", "to the right", "rightwards"),
    "up": ("up", "upwards"),
    "down": ("down", "downwards"),
}
"""How users say a direction."""
ANSWERED_WAYS = {"left": "to the left", "right": "to the right", "up": "up", "down": "down"}
"""How answers say it."""


def motion_sample(task: str, rng: SampleRng) -> Sample:
    """Which way something moves."""
    direction = rng.one((*DIRECTIONS, *DIRECTIONS, None))
    number = rng.weighted({1: 0.75, 2: 0.25})

    def draw() -> tuple[Scene, list[list[Thing]]] | None:
        scene = draw_video_scene(rng, number)
        if number > 1 and scene.things[0].shape == scene.things[1].shape:
            return None
        num_frames = draw_num_frames(rng)
        still = [list(scene.things)] * num_frames
        moments = still if direction is None else move(rng, scene, direction, num_frames)
        return (scene, moments) if moments else None

    scene, moments = rng.until(draw)
    exchange = _ask_direction(rng, scene.things[0], direction, alone=number == 1)
    return conversation(rng, task, [draw_video(rng, scene, moments)], [exchange])


def colour_change_sample(task: str, rng: SampleRng) -> Sample:
    """How a colour changes."""
    scene = draw_video_scene(rng, 1)
    before = scene.things[0]
    after = before if rng.chance(0.2) else recolour(rng, before, scene.background)
    num_frames = draw_num_frames(rng)
    turn = switch(rng, num_frames)
    clip = draw_video(rng, scene, [[before]] * turn + [[after]] * (num_frames - turn))
    return conversation(rng, task, [clip], [_ask_colour_change(rng, before, after)])


def first_sample(task: str, rng: SampleRng) -> Sample:
    """What comes first, or last."""

    def draw() -> Scene | None:
        scene = draw_video_scene(rng, 2)
        return scene if named(scene.things[0]) != named(scene.things[1]) else None

    scene = rng.until(draw)
    first, last = rng.some(scene.things, 2)
    clip = _one_after_the_other(rng, scene, first, last)
    asks_first = rng.chance(0.6)
    thing = first if asks_first else last
    one, other = rng.some(scene.things, 2)
    question = rng.ask(FIRST if asks_first else LAST, one=named(one), other=named(other), first=named(first))
    check = All((Names("colour", (thing.colour,)), Names("shape", (thing.shape,))))
    answer = f"The {named(first)} came first."
    if not asks_first:
        answer = f"{answer} The {named(last)} came last."
    exchange = Exchange(question=question, answer=answer, check=Concludes(check))
    return conversation(rng, task, [clip], [exchange])


def _ask_direction(rng: SampleRng, thing: Thing, direction: str | None, *, alone: bool) -> Exchange:
    words = rng.one((thing.shape, thing.shape, named(thing), *(("object", "shape", "thing") if alone else ())))
    said = (
        f"the {thing.shape} does not move"
        if direction is None
        else f"the {thing.shape} moves {ANSWERED_WAYS[direction]}"
    )
    answer = sentence(said)
    check = Denies() if direction is None else Names("direction", (direction,))
    if rng.chance(0.15 if rng.held_out else 0.35):  # as in `questions.ask_yes_no`
        questions = direction if direction is not None and rng.chance(0.5) else rng.one(tuple(DIRECTIONS))
        question = rng.ask(DOES_MOVE, the=words, way=rng.one(WAYS[questions]))
        yes = questions == direction
        return Exchange(question=question, answer=concluded(said, yes=yes), check=Agrees(yes))
    question = rng.ask(HAPPENS) if direction is not None and rng.chance(0.2) else rng.ask(DIRECTION, the=words)
    return Exchange(question=question, answer=answer, check=check)


def _ask_colour_change(rng: SampleRng, before: Thing, after: Thing) -> Exchange:
    shape, changes = before.shape, before.colour != after.colour
    said = (
        f"the {shape} changes from {before.colour} to {after.colour}"
        if changes
        else f"the {shape} stays {before.colour}"
    )
    match rng.weighted({"how": 5, "whether": 1.5, "then": 3}):
        case "how":
            colours = (before.colour, after.colour) if changes else (before.colour,)
            question = rng.ask(HAPPENS) if changes and rng.chance(0.25) else rng.ask(COLOUR_CHANGE, shape=shape)
            return Exchange(question=question, answer=sentence(said), check=Names("colour", colours))
        case "whether":
            return _ask_whether(rng, shape, said, changes=changes)
        case _:
            then, thing = rng.one((("start", before), ("beginning", before), ("end", after), ("end", after)))
            question = rng.ask(COLOUR_THEN, shape=shape, then=then)
            answer = f"{sentence(said)} At the {then} it is {thing.colour}."
            return Exchange(question=question, answer=answer, check=Concludes(Names("colour", (thing.colour,))))


def _ask_whether(rng: SampleRng, shape: str, said: str, *, changes: bool) -> Exchange:
    question = rng.ask(CHANGES_COLOUR, shape=shape)
    yes = changes != ("same" in question.lower())
    return Exchange(question=question, answer=concluded(said, yes=yes), check=Agrees(yes))


def _one_after_the_other(rng: SampleRng, scene: Scene, first: Thing, last: Thing) -> SampleVideo:
    """One thing, then the other; sometimes the first one stays, sometimes both are at one place."""
    num_frames = draw_num_frames(rng)
    turn = switch(rng, num_frames)
    if rng.chance(0.3):
        last = replace(last, cx=first.cx, cy=first.cy, cell=first.cell, diameter=min(first.diameter, last.diameter))
        return draw_video(rng, scene, [[first]] * turn + [[last]] * (num_frames - turn))
    after = [first, last] if rng.chance(0.3) else [last]
    return draw_video(rng, scene, [[first]] * turn + [after] * (num_frames - turn))
