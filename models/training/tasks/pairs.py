"""Tasks about two images: which one has something, which has more, and what differs between them."""

from dataclasses import replace

from models.training.drawing.draw import draw_image
from models.training.drawing.palette import COLOURS, draw_rgb
from models.training.drawing.scene import Look, Scene, Thing, draw_look, draw_scene
from models.training.drawing.shapes import SHAPES, outline
from models.training.rng import SampleRng, Templates
from models.training.sample import Check, Sample
from models.training.tasks.check import ORDINALS, Agrees, Concludes, Denies, LocatesEach, Mentions, Names, describes
from models.training.tasks.phrases import description, listed, named, placed, sentence, with_article
from models.training.tasks.talk import Exchange, conversation

_IMAGES = "(pictures|images|pictures|images|photos)"
_IMAGE = "(picture|image|one|picture|image)"

WHICH_HAS = Templates(
    learnt=(
        f"(Which|Which|In which|What) {_IMAGE} (has|shows|contains) {{a}}?",
        f"Which of the (two|) {_IMAGES} (has|shows|contains) {{a}}?",
        f"(Which|In which) {_IMAGE} is there {{a}}?",
        "(Where|In which picture|In which image) (is there|do you see|can you see) {a}, in the first or in the second?",
        f"Is {{a}} in the first or (in|) the second {_IMAGE}?",
        f"Which {_IMAGE} has the {{bare}}?",
        "Does the first or the second picture (show|have|contain) {a}?",
        f"(On|In) which (of the {_IMAGES}|of them|one) (is there|do you find|do you see) {{a}}?",
        f"(Tell me|Say|Can you tell me) which {_IMAGE} (has|shows|contains) {{a}}.",
        f"(Find|Show me|Point to) the {_IMAGE} (that has|that shows|in which there is) {{a}}.",
        f"(Which|Which one) of (these|the two) {_IMAGES} (contains|has got) {{a}}?",
        "Which of them (has|shows|contains) {a}?",
        f"(Where|On which {_IMAGE}) (can|could) (I|one|you) (see|find) {{a}}?",
    ),
    held_out=("On which of these pictures can {a} be seen?", "Find the picture with {a}.", "Which one shows {a}?"),
)
WHICH_HAS_MORE = Templates(
    learnt=(
        f"(Which|What) {_IMAGE} (has|shows|contains) more (objects|shapes|things)?",
        f"Which of the (two|) {_IMAGES} has more (objects|shapes|things)?",
        "Are there more (objects|shapes|things) in the first or in the second (picture|image)?",
        f"(Where|In which {_IMAGE}) are there more (objects|shapes|things)?",
        "Does the first or the second picture (show|have) more (objects|shapes|things)?",
        f"(Tell me|Say|Can you tell me) which {_IMAGE} (has|shows) more (objects|shapes|things).",
        f"(On|In) which (of the {_IMAGES}|of them) (are there|do you see) more (objects|things|shapes)?",
        f"Which {_IMAGE} has the (larger|higher|greater) (number|count) of (shapes|objects)?",
    ),
    held_out=(
        f"In which of these {_IMAGES} do you count more (objects|shapes)?",
        "Which one has the larger number of (objects|things)?",
    ),
)
DIFFERENCE = Templates(
    learnt=(
        f"What is (the difference|different) between (the|these|the two|these two) {_IMAGES}?",
        f"(What|How) (differs|do the pictures differ|has changed|changed)( between the {_IMAGES}|)?",
        f"Compare (the|these|the two|these two) {_IMAGES}.",
        f"(What's|What is) different( in the second {_IMAGE}| here|)?",
        f"(Find|Tell me|Name) the difference( between the {_IMAGES}|).",
        "What (has changed|changed) from the first (picture|image) to the second?",
        f"How do the (two|) {_IMAGES} differ?",
        f"(Can|Could) you (see|find|tell me|name) (the difference|what differs) (between the {_IMAGES}|)?",
        f"In (which|what) way (are|do) the {_IMAGES} (different|differ)?",
        f"What (sets apart|makes different|distinguishes) the (two|) {_IMAGES}?",
        f"What (does one|do you) find (different|changed) (in the second {_IMAGE}|)?",
        f"What sets the (first|second) {_IMAGE} apart from the other( one|)?",
        f"How does the (first|second) {_IMAGE} differ from the (other|other one|second|first)?",
        f"What makes the (first|second) {_IMAGE} different (from the other|from the other one|)?",
        f"In (what respect|which respect|which point) do (they|the {_IMAGES}|the two) differ?",
        "What is in the (first|second) picture but not in the (other|other one)?",
        "(Point out|Show me|Say) the difference.",
        "(Do you notice|Do you find|Can you make out) (a|any) difference?",
        f"What (can you say|would you say) about the difference (of|between) the {_IMAGES}?",
    ),
    held_out=(
        f"In what do (the|these) {_IMAGES} differ?",
        "What distinguishes the first picture from the second?",
        "Can you spot the difference?",
    ),
)
SAME = Templates(
    learnt=(
        f"Are (the|these|the two|these two|both) {_IMAGES} (the same|equal|identical|alike)?",
        f"Do (the|both|these) {_IMAGES} show the same( thing|)?",
        "Is the (first|second) picture the same as the (second|first)( one|)?",
        f"(Do you think|Is it true|Do you agree) that (the|both|the two) {_IMAGES} are the same?",
        "Are they (the same|alike|equal)?",
        f"(Tell me if|I want to know if) the {_IMAGES} are (the same|identical).",
    ),
    held_out=(f"Would you say that both {_IMAGES} are the same?", "Are they identical?"),
)
DESCRIBE_ONE = Templates(
    learnt=(
        f"What is in the {{nth}} {_IMAGE}?",
        f"(Describe|Please describe) the {{nth}} {_IMAGE}.",
        f"What (do you see|can you see|is shown) in the {{nth}} {_IMAGE}?",
        f"What does the {{nth}} {_IMAGE} show?",
        f"(Say|Tell me|I want to know) what the {{nth}} {_IMAGE} (shows|contains|has in it).",
        f"(What|How) about the {{nth}} {_IMAGE}?",
        f"(Talk about|Summarise|Explain) the {{nth}} {_IMAGE}.",
        f"(Look at|Now) the {{nth}} {_IMAGE}: what (does it show|do you see|is there)?",
        f"And what is in the {{nth}} {_IMAGE}?",
    ),
    held_out=(f"Tell me about the {{nth}} {_IMAGE}.", "And the {nth} picture, what is in it?"),
)
COLOUR_IN_ONE = Templates(
    learnt=(
        f"What colour is the {{the}} in the {{nth}} {_IMAGE}?",
        f"(What|Which) colour does the {{the}} (of|in) the {{nth}} {_IMAGE} have?",
        f"In the {{nth}} {_IMAGE}, what colour is the {{the}}?",
    ),
    held_out=("What is the colour of the {the} in the {nth} picture?",),
)


def two_images_sample(task: str, rng: SampleRng) -> Sample:
    """A question about two images."""
    # Training practises what is learnt last: to compare what was said of both.
    difference = 5 if rng.held_out else 12
    ask = rng.weighted(
        {_ask_which_has: 4, _ask_difference: difference, _ask_which_has_more: 2, _ask_description: 1, _ask_colour: 1}
    )
    scenes, exchange = rng.until(lambda: ask(rng))
    return conversation(rng, task, [draw_image(rng, scene) for scene in scenes], [exchange])


def _ask_which_has(rng: SampleRng) -> tuple[tuple[Scene, Scene], Exchange] | None:
    scenes = _any_scene(rng), _any_scene(rng)
    noun = rng.weighted({_shape_of: 2, _colour_of: 1, named: 3})
    nouns = [{noun(thing) for thing in scene.things} for scene in scenes]
    wanted = rng.weighted({(True, False): 4, (False, True): 4, (True, True): 1, (False, False): 1})
    others = {noun(replace(thing, shape=rng.one(SHAPES), colour=rng.one(COLOURS))) for thing in scenes[0].things}
    fitting = [one for one in nouns[0] | nouns[1] | others if tuple(one in there for there in nouns) == wanted]
    if not fitting:
        return None
    found = rng.one(sorted(fitting))
    a = with_article(found)
    match wanted:
        case (True, True):
            answer, check = f"Both pictures have {a}.", Mentions(needed=("both",))
        case (False, False):
            answer, check = f"Neither picture has {a}.", Denies()
        case _:
            nth = ORDINALS[wanted.index(True)]
            answer, check = f"The {nth} picture has {a}.", Names("picture", (nth,))
    return scenes, Exchange(question=rng.ask(WHICH_HAS, a=a, bare=found), answer=answer, check=check)


def _ask_which_has_more(rng: SampleRng) -> tuple[tuple[Scene, Scene], Exchange] | None:
    numbers = [rng.source.randint(1, 5) for _ in range(2)]
    if numbers[0] == numbers[1]:
        return None
    scenes = _scene_of(rng, numbers[0]), _scene_of(rng, numbers[1])
    nth = ORDINALS[numbers.index(max(numbers))]
    answer = f"The {nth} picture has more objects."
    return scenes, Exchange(question=rng.ask(WHICH_HAS_MORE), answer=answer, check=Names("picture", (nth,)))


def _ask_description(rng: SampleRng) -> tuple[tuple[Scene, Scene], Exchange]:
    scenes = tuple(
        draw_scene(rng, [draw_look(rng, sized=True) for _ in range(rng.source.randint(1, 2))], own_cells=True)
        for _ in range(2)
    )
    index = rng.source.randrange(2)
    things = scenes[index].things
    question = rng.ask(DESCRIBE_ONE, nth=ORDINALS[index])
    return (scenes[0], scenes[1]), Exchange(question=question, answer=description(things), check=describes(things))


def _ask_colour(rng: SampleRng) -> tuple[tuple[Scene, Scene], Exchange]:
    scenes = _scene_of(rng, 1), _scene_of(rng, 1)
    index = rng.source.randrange(2)
    thing = scenes[index].things[0]
    words = rng.one((thing.shape, "object", "shape", "thing"))
    question = rng.ask(COLOUR_IN_ONE, the=words, nth=ORDINALS[index])
    answer = f"The {thing.shape} is {thing.colour}."
    return scenes, Exchange(question=question, answer=answer, check=Names("colour", (thing.colour,)))


def _ask_difference(rng: SampleRng) -> tuple[tuple[Scene, Scene], Exchange] | None:
    """What differs, or whether anything does."""
    change = rng.weighted({_with_other_look: 4, _with_other_place: 2, _with_nothing_else: 1.5})
    first = _scene_of(rng, 1 if change is _with_other_place else rng.source.randint(1, 2))
    changed = change(rng, first)
    if changed is None:
        return None
    second, difference, check = changed
    shown, also = (listed([placed(thing) for thing in scene.things]) for scene in (first, second))
    shows = f"The first picture shows {shown}, and the second {also}."
    if rng.chance(0.75):
        question, conclusion = rng.ask(DIFFERENCE), sentence(difference)
    else:
        same = second is first
        question, conclusion, check = rng.ask(SAME), f"{'Yes' if same else 'No'}, {difference}.", Agrees(same)
    return (first, second), Exchange(question=question, answer=f"{shows} {conclusion}", check=Concludes(check))


def _with_nothing_else(rng: SampleRng, scene: Scene) -> tuple[Scene, str, Check]:
    del rng
    return scene, "they are the same", Mentions(needed=("same|identical|equal|no",))


def _with_other_look(rng: SampleRng, scene: Scene) -> tuple[Scene, str, Check] | None:
    """The scene with another colour or another shape for one of its things."""
    thing = rng.one(scene.things)
    if rng.chance(0.5):
        colour = rng.one([colour for colour in COLOURS if colour != thing.colour])
        other = replace(thing, colour=colour, rgb=draw_rgb(rng, colour))
    else:
        shape = rng.one([shape for shape in SHAPES if shape != thing.shape])
        other = replace(thing, shape=shape, lines=outline(rng, shape))
    if not scene.background.shows(other.rgb) or named(other) in map(named, scene.things):
        return None
    things = tuple(other if one is thing else one for one in scene.things)
    if thing.shape == other.shape:
        words, check = other.colour, Names("colour", (thing.colour, other.colour))
    else:
        words, check = with_article(other.shape), Names("shape", (thing.shape, other.shape))
    return replace(scene, things=things), f"the {named(thing)} is {words} in the second", check


def _with_other_place(rng: SampleRng, scene: Scene) -> tuple[Scene, str, Check] | None:
    """The scene with its only thing somewhere else."""
    thing = scene.things[0]
    cell = rng.one([cell for cell in range(9) if cell != thing.cell])
    look = Look(shape=thing.shape, colour=thing.colour, size="small", cell=cell)
    there = draw_scene(rng, [look], sides=(scene.width, scene.height)).things[0]
    half = thing.diameter / 2 + 1
    if not (half <= there.cx <= scene.width - half and half <= there.cy <= scene.height - half):
        return None
    other = replace(thing, cx=there.cx, cy=there.cy, cell=cell)
    words = f"the {thing.shape} is {thing.place} in the first and {other.place} in the second"
    return replace(scene, things=(other,)), words, LocatesEach((thing.place, other.place))


def _scene_of(rng: SampleRng, number: int) -> Scene:
    return draw_scene(rng, [draw_look(rng) for _ in range(number)])


def _any_scene(rng: SampleRng) -> Scene:
    return _scene_of(rng, rng.weighted({1: 0.6, 2: 0.3, 3: 0.1}))


def _shape_of(thing: Thing) -> str:
    return thing.shape


def _colour_of(thing: Thing) -> str:
    return f"{thing.colour} object"
