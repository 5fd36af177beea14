"""Questions about one scene and their true answers: what things are, where, how many, and whether they are there.

Each `ask_` function asks one question about a scene that may hold anything, or gives None where this scene and these
draws allow no unambiguous one; so single questions and follow-ups are the same. Draws no images.
"""

from collections.abc import Callable, Mapping
from itertools import product

from models.training.drawing.palette import COLOURS
from models.training.drawing.scene import PLACES, Scene, Thing
from models.training.drawing.shapes import SHAPES
from models.training.rng import SampleRng, Templates
from models.training.tasks import templates
from models.training.tasks.check import Agrees, All, Counts, Denies, Locates, Names, describes
from models.training.tasks.phrases import concluded, counted, description, named, plural, sentence, with_article
from models.training.tasks.talk import Exchange

Ask = Callable[[SampleRng, Scene], Exchange | None]


def ask_description(rng: SampleRng, scene: Scene) -> Exchange | None:
    """What is in it."""
    cells = {thing.cell for thing in scene.things}
    if len(cells) < len(scene.things) or any(thing.size == "medium" for thing in scene.things):
        return None
    return Exchange(
        question=rng.ask(rng.weighted({templates.DESCRIBE: 0.75, templates.LIST: 0.25})),
        answer=description(scene.things),
        check=describes(scene.things),
        about=scene.things[0] if len(scene.things) == 1 else None,
    )


def ask_shape(rng: SampleRng, scene: Scene) -> Exchange | None:
    """What shape something has."""
    if rng.chance(0.07):
        return _deny_colour(rng, scene)
    if not scene.things:
        return None
    thing = rng.one(scene.things)
    if len(scene.things) == 1 and rng.chance(0.6):
        question = rng.ask(templates.SHAPE_ALONE)
    elif _only(thing, "colour", scene) and rng.chance(0.8):
        question = rng.ask(templates.SHAPE, the=f"{thing.colour} {rng.say(templates.ONE)}")
    elif _only(thing, "cell", scene):
        question = rng.ask(templates.SHAPE, the=_at_its_place(rng, thing))
    else:
        return None
    answer = f"It is {with_article(thing.shape)}."
    return Exchange(question=question, answer=answer, check=Names("shape", (thing.shape,)), about=thing)


def ask_colour(rng: SampleRng, scene: Scene) -> Exchange | None:
    """What colour something has."""
    if rng.chance(0.07):
        return _deny_shape(rng, scene, rng.one((templates.COLOUR, templates.COLOUR, templates.SIZE)))
    if rng.chance(0.08):
        return _ask_background(rng, scene)
    if not scene.things:
        return None
    thing = rng.one(scene.things)
    words = _without_colour(rng, thing, scene)
    if words is None:
        return None
    answer = f"The {thing.shape} is {thing.colour}."
    return Exchange(
        question=rng.ask(templates.COLOUR, the=words),
        answer=answer,
        check=Names("colour", (thing.colour,)),
        about=thing,
    )


def ask_place(rng: SampleRng, scene: Scene) -> Exchange | None:
    """Where something is, or what is somewhere."""
    if rng.chance(0.06):
        return _deny_shape(rng, scene, templates.PLACE)
    if rng.chance(0.25):
        return _ask_what_is_at(rng, scene)
    if not scene.things:
        return None
    thing = rng.one(scene.things)
    words = _with_colour(rng, thing, scene)
    if words is None:
        return None
    answer = f"The {thing.shape} is {thing.place}."
    return Exchange(
        question=rng.ask(templates.PLACE, the=words), answer=answer, check=Locates(thing.place), about=thing
    )


def ask_size(rng: SampleRng, scene: Scene) -> Exchange | None:
    """How large something is, or which of two is larger."""
    if len(scene.things) == 2 and {thing.size for thing in scene.things} == {"small", "large"} and rng.chance(0.5):
        return _ask_comparison(rng, scene)
    things = [thing for thing in scene.things if thing.size != "medium"]
    if not things:
        return None
    thing = rng.one(things)
    words = _with_colour(rng, thing, scene)
    if words is None:
        return None
    answer = f"The {thing.shape} is {thing.size}."
    return Exchange(
        question=rng.ask(templates.SIZE, the=words), answer=answer, check=Names("size", (thing.size,)), about=thing
    )


def ask_count(rng: SampleRng, scene: Scene) -> Exchange | None:
    """How many there are, of all or of a kind."""
    kind = rng.weighted({"all": 4, "shape": 4, "colour": 2, "both": 1})
    model = rng.one(scene.things) if scene.things and rng.chance(0.9) else None
    shape = rng.one(SHAPES) if model is None else model.shape
    colour = rng.one(COLOURS) if model is None else model.colour
    match kind:
        case "all":
            things, noun = list(scene.things), "object"
            many = rng.one(("objects", "shapes", "things", "objects"))
        case "shape":
            things, noun = [thing for thing in scene.things if thing.shape == shape], shape
            many = plural(noun)
        case "colour":
            things, noun = [thing for thing in scene.things if thing.colour == colour], f"{colour} object"
            many = f"{colour} {rng.one(('objects', 'shapes', 'things', 'ones'))}"
        case _:
            noun = f"{colour} {shape}"
            things = [thing for thing in scene.things if named(thing) == noun]
            many = plural(noun)
    return Exchange(
        question=rng.ask(templates.COUNT, many=many), answer=counted(things, noun), check=Counts(len(things))
    )


def ask_yes_no(rng: SampleRng, scene: Scene) -> Exchange | None:
    """Whether something is there, has a colour, or is beside something else."""
    # Training practises what is learnt last: yes or no by what was just said.
    practised = 1 if rng.held_out else 3
    ask = rng.weighted({_ask_is_there: 6, _ask_is_colour: 2 * practised, _ask_is_beside: practised})
    return ask(rng, scene)


def ask_about_it(rng: SampleRng, thing: Thing) -> Exchange:
    """One more question about the thing that was just spoken of, by a pronoun."""
    answer, check, form = rng.one(
        [
            (f"The {thing.shape} is {thing.colour}.", Names("colour", (thing.colour,)), templates.ITS_COLOUR),
            (f"It is {with_article(thing.shape)}.", Names("shape", (thing.shape,)), templates.ITS_SHAPE),
            (f"The {thing.shape} is {thing.place}.", Locates(thing.place), templates.ITS_PLACE),
            (f"The {thing.shape} is {thing.size}.", Names("size", (thing.size,)), templates.ITS_SIZE),
        ][: 4 if thing.size != "medium" else 3]
    )
    return Exchange(question=rng.ask(form), answer=answer, check=check, about=thing)


def _ask_background(rng: SampleRng, scene: Scene) -> Exchange | None:
    colour = scene.background.colour
    if colour is None:
        return None
    answer = f"The background is {colour}."
    return Exchange(question=rng.ask(templates.BACKGROUND), answer=answer, check=Names("colour", (colour,)))


def _ask_what_is_at(rng: SampleRng, scene: Scene) -> Exchange | None:
    place = rng.one(scene.things).place if scene.things and rng.chance(0.8) else rng.one(PLACES)
    there = [thing for thing in scene.things if thing.place == place]
    question = rng.ask(templates.AT_PLACE, place=_said(rng, place))
    if not there:
        return Exchange(question=question, answer=f"There is nothing {place}.", check=Denies())
    if len(there) > 1:
        return None
    answer = sentence(f"{with_article(named(there[0]))} is {place}")
    return Exchange(question=question, answer=answer, check=_is(there[0]), about=there[0])


def _ask_comparison(rng: SampleRng, scene: Scene) -> Exchange | None:
    one, other = scene.things
    if named(one) == named(other):
        return None
    size, comparative, form = rng.one((("large", "larger", templates.LARGER), ("small", "smaller", templates.SMALLER)))
    thing = one if one.size == size else other
    question = rng.ask(form, one=named(one), other=named(other))
    return Exchange(question=question, answer=f"The {named(thing)} is {comparative}.", check=_is(thing), about=thing)


def _ask_is_there(rng: SampleRng, scene: Scene) -> Exchange | None:
    wanted = rng.chance(0.5)
    kind = rng.weighted({"shape": 3, "colour": 1, "both": 4})
    there = {_noun(kind, thing.colour, thing.shape) for thing in scene.things}
    if wanted:
        nouns = sorted(there)
    elif kind == "both" and scene.things and rng.chance(0.6):
        nouns = sorted({_noun(kind, one.colour, other.shape) for one, other in product(scene.things, repeat=2)} - there)
    else:
        nouns = sorted({_noun(kind, colour, shape) for colour, shape in product(COLOURS, SHAPES)} - there)
    if not nouns:
        return None
    noun = rng.one(nouns)
    question = rng.ask(templates.IS_THERE, a=with_article(noun), bare=noun, many=plural(noun))
    answer = f"Yes, there is {with_article(noun)}." if wanted else f"No, there is no {noun}."
    return Exchange(question=question, answer=answer, check=Agrees(wanted))


def _ask_is_colour(rng: SampleRng, scene: Scene) -> Exchange | None:
    thing = rng.one(scene.things) if scene.things else None
    if thing is None or not _only(thing, "shape", scene):
        return None
    yes = rng.chance(0.5)
    colour = thing.colour if yes else rng.one([colour for colour in COLOURS if colour != thing.colour])
    question = rng.ask(templates.IS_COLOUR, shape=thing.shape, colour=colour)
    answer = concluded(f"the {thing.shape} is {thing.colour}", yes=yes)
    return Exchange(question=question, answer=answer, check=Agrees(yes))


def _ask_is_beside(rng: SampleRng, scene: Scene) -> Exchange | None:
    if len(scene.things) < 2:
        return None
    one, other = rng.some(scene.things, 2)
    sides = _sides(one, other, scene)
    if not sides or not (_only(one, "shape", scene) and _only(other, "shape", scene)):
        return None
    truth, falsehood = rng.one(sides)
    yes = rng.chance(0.5)
    side = truth if yes else falsehood
    question = rng.ask(templates.IS_BESIDE, one=one.shape, side=rng.one(templates.SIDES[side]), other=other.shape)
    answer = concluded(f"the {one.shape} is {truth} the {other.shape}", yes=yes)
    return Exchange(question=question, answer=answer, check=Agrees(yes))


def _sides(one: Thing, other: Thing, scene: Scene) -> list[tuple[str, str]]:
    """(true, false) relations of two things that are clearly not on one line."""
    sides: list[tuple[str, str]] = []
    if abs(one.cx - other.cx) > scene.width / 5:
        pair = ("to the left of", "to the right of")
        sides.append(pair if one.cx < other.cx else (pair[1], pair[0]))
    if abs(one.cy - other.cy) > scene.height / 5:
        pair = ("above", "below")
        sides.append(pair if one.cy < other.cy else (pair[1], pair[0]))
    return sides


def _deny_shape(rng: SampleRng, scene: Scene, form: Templates) -> Exchange:
    """A question about a shape that is not there."""
    there = {thing.shape for thing in scene.things}
    shape = rng.one([shape for shape in SHAPES if shape not in there])
    return Exchange(question=rng.ask(form, the=shape), answer=f"There is no {shape} in the picture.", check=Denies())


def _deny_colour(rng: SampleRng, scene: Scene) -> Exchange:
    """A question about a colour that nothing has."""
    there = {thing.colour for thing in scene.things}
    colour = rng.one([colour for colour in COLOURS if colour not in there])
    question = rng.ask(templates.SHAPE, the=f"{colour} {rng.say(templates.ONE)}")
    return Exchange(question=question, answer=f"There is no {colour} object in the picture.", check=Denies())


def _with_colour(rng: SampleRng, thing: Thing, scene: Scene) -> str | None:
    """Words for a thing that do not tell its place."""
    if len(scene.things) == 1 and rng.chance(0.15):
        return rng.say(templates.ONE)
    if _only(thing, "shape", scene) and rng.chance(0.7):
        return thing.shape
    if _only(thing, "colour", scene) and rng.chance(0.4):
        return f"{thing.colour} {rng.say(templates.ONE)}"
    alike = [other for other in scene.things if named(other) == named(thing)]
    return named(thing) if len(alike) == 1 else None


def _without_colour(rng: SampleRng, thing: Thing, scene: Scene) -> str | None:
    """Words for a thing that do not tell its colour."""
    if len(scene.things) == 1 and rng.chance(0.25):
        return rng.say(templates.ONE)
    if _only(thing, "shape", scene) and rng.chance(0.8):
        return thing.shape
    return _at_its_place(rng, thing) if _only(thing, "cell", scene) else None


def _only(thing: Thing, attribute: str, scene: Scene) -> bool:
    """Whether no other thing shares this with it."""
    return sum(getattr(other, attribute) == getattr(thing, attribute) for other in scene.things) == 1


def _at_its_place(rng: SampleRng, thing: Thing) -> str:
    return f"{rng.say(templates.ONE)} {_said(rng, thing.place)}"


def _said(rng: SampleRng, place: str) -> str:
    """A place as a user says it."""
    return rng.one(templates.PLACE_FORMS[place])


def _noun(kind: str, colour: str, shape: str) -> str:
    match kind:
        case "shape":
            return shape
        case "colour":
            return f"{colour} object"
        case _:
            return f"{colour} {shape}"


def _is(thing: Thing) -> All:
    """The judge of an answer that names one thing."""
    return All((Names("colour", (thing.colour,)), Names("shape", (thing.shape,))))


ASKS: Mapping[str, Ask] = {
    "describe": ask_description,
    "shape": ask_shape,
    "colour": ask_colour,
    "place": ask_place,
    "size": ask_size,
    "count": ask_count,
    "yes_no": ask_yes_no,
}
"""Task → its question."""
