"""Tasks about an image of a short text."""

from dataclasses import dataclass

from models.training.drawing.draw import draw_ground, draw_image, finish, paste
from models.training.drawing.letters import SMALLEST_PIXELS, Ink, draw_ink
from models.training.drawing.palette import COLOURS, Rgb, brightness, draw_rgb
from models.training.drawing.scene import Background, draw_background, draw_look, draw_scene, draw_sides
from models.training.drawing.shapes import SHAPES
from models.training.rng import SampleRng, Templates
from models.training.sample import Sample, SampleImage, Seen
from models.training.tasks.check import Agrees, Denies, Names, Reads
from models.training.tasks.phrases import plural, with_article
from models.training.tasks.talk import Exchange, conversation
from models.training.tasks.templates import DESCRIBE, IS_THERE
from models.training.tasks.words import draw_text

_CLEAR = 50
"""The least difference in brightness between a text and its background."""
_IMAGE = "(picture|image|photo|picture|image)"

READ = Templates(
    learnt=(
        "What does it say?",
        f"What does (the|this) {_IMAGE} say?",
        "What does the (text|sign|word|writing) say?",
        "(Read|Please read) (the text|it|this|what it says|the word|the characters).",
        f"What is (written|printed) (here|in the {_IMAGE}|there|in this {_IMAGE}|)?",
        f"(What|Which) (text|word|letters|characters) (is|are) (shown|written|in the {_IMAGE}|in this {_IMAGE})?",
        f"What text (do you see|can you read|is there) (in the {_IMAGE}|)?",
        f"What is the text (in (this|the) {_IMAGE}|)?",
        "(Can|Could) you read (this|it|the text|what it says)?",
        "(Transcribe|Write down|Spell out) the text.",
        "(What's written|What stands) (here|there)?",
        "(Tell me|Please say|Can you tell me|Say) what (it says|the text says|is printed|the sign says).",
        f"(What|Which) (text|word) can (you|one|I) (read|see|find) (here|in the {_IMAGE}|there)?",
        f"(Read|Read out|Read aloud) (what is written|the word|this {_IMAGE}|what stands there).",
        "(I want|I would like) to know what (it says|is written|the text is).",
        f"What (can be read|is to be read|are the letters|is there to read) (here|in the {_IMAGE}|)?",
    ),
    held_out=(
        "Please tell me what is written.",
        f"Which text can be read in the {_IMAGE}?",
        "What can you read here?",
        "Read out the text in the picture.",
    ),
)
READ_NUMBER = Templates(
    learnt=(
        f"(What|Which) number (is this|is it|is shown|do you see|is in the {_IMAGE}|can you see)?",
        "What is the number?",
        "(Read|Tell me) the number.",
        f"(What|Which) (digit|digits|number) (is|are) (in (this|the) {_IMAGE}|shown|written) (here|)?",
        "(Tell me|Say|Can you tell me) (which|what) number (it is|you see|is written).",
        "(What|Which) number (can be read|can I read|is to be read|is printed) (here|)?",
    ),
    held_out=("Which number can you read?", "What number is written here?"),
)
READ_LETTER = Templates(
    learnt=(
        "(What|Which) (letter|character) (is this|is it|is shown|do you see|is in the picture)?",
        "What is the letter?",
        "(Read|Name) the letter.",
        "(Tell me|Say|Can you tell me) (which|what) letter (it is|you see|is written).",
        "(What|Which) letter (can be read|can I read|is to be read|is printed) (here|)?",
    ),
    held_out=("Which letter can you read?", "What letter is written here?"),
)
IS_TEXT = Templates(
    learnt=(
        f"Is there (any|a|some) (text|writing|word) (in (this|the) {_IMAGE}|)?",
        "(Can|Do) you see (any|some|a) (text|word|writing|letters)?",
        f"Does the {_IMAGE} (contain|show|have) (text|any text|a word|writing)?",
    ),
    held_out=("Is anything written here?", "Is some text to be seen?"),
)
TEXT_COLOUR = Templates(
    learnt=(
        "(What|Which) colour (is|has) the (text|writing|word)?",
        "What is the colour of the (text|letters|writing)?",
        "In (which|what) colour is the text (written|)?",
    ),
    held_out=("What colour are the characters?", "The text is written in what colour?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """An image of a text, before it is drawn."""

    text: str
    """What it says."""
    ink: Ink
    """Form of the text."""
    colour: str
    """One of `palette.COLOURS`."""
    rgb: Rgb
    """How that colour looks here."""
    width: int
    """The image's, in pixels."""
    height: int
    """The image's, in pixels."""
    background: Background
    """Behind the text."""


def read_sample(task: str, rng: SampleRng) -> Sample:
    """A question about a text."""
    if rng.chance(0.04):
        return _sample_without_text(task, rng)
    sign = draw_sign(rng, draw_text(rng))
    ask = rng.weighted({ask_text: 0.88, ask_text_colour: 0.06, _ask_is_text: 0.03, _ask_is_shape: 0.03})
    return conversation(rng, task, [draw_sign_image(rng, sign)], [ask(rng, sign)])


def ask_text(rng: SampleRng, sign: Sign) -> Exchange:
    """What it says."""
    forms = rng.weighted({READ: 0.6, DESCRIBE: 0.15, _by_kind(sign.text): 0.25})
    return Exchange(question=rng.ask(forms), answer=said(sign.text), check=Reads(sign.text))


def ask_text_colour(rng: SampleRng, sign: Sign) -> Exchange:
    """What colour the text has."""
    return Exchange(
        question=rng.ask(TEXT_COLOUR), answer=f"The text is {sign.colour}.", check=Names("colour", (sign.colour,))
    )


def _by_kind(text: str) -> Templates:
    if text.isdecimal():
        return READ_NUMBER
    return READ_LETTER if len(text) == 1 else READ


def _ask_is_text(rng: SampleRng, sign: Sign) -> Exchange:
    return Exchange(question=rng.ask(IS_TEXT), answer=f'Yes, it says "{sign.text}".', check=Agrees(True))


def _ask_is_shape(rng: SampleRng, sign: Sign) -> Exchange:
    """Whether there is a shape, where there is only a text."""
    del sign
    shape = rng.one(SHAPES)
    question = rng.ask(IS_THERE, a=with_article(shape), bare=shape, many=plural(shape))
    return Exchange(question=question, answer=f"No, there is no {shape}.", check=Agrees(False))


def _sample_without_text(task: str, rng: SampleRng) -> Sample:
    """A question about a text, where there are only things, or nothing."""
    picture = draw_image(rng, draw_scene(rng, [draw_look(rng) for _ in range(rng.source.randint(0, 3))]))
    if rng.chance(0.3):
        exchange = Exchange(question=rng.ask(IS_TEXT), answer="No, there is no text.", check=Agrees(False))
    else:
        exchange = Exchange(question=rng.ask(READ), answer="There is no text in the picture.", check=Denies())
    return conversation(rng, task, [picture], [exchange])


def said(text: str) -> str:
    """The answer that gives a text."""
    return f'It says "{text}".'


def draw_sign(rng: SampleRng, text: str) -> Sign:
    """An image with this text somewhere in it."""

    def draw() -> Sign | None:
        width, height = draw_sides(rng)
        largest = min(0.8 * height, width / (0.55 * len(text)))
        if largest < SMALLEST_PIXELS:
            return None
        ink = draw_ink(rng, text, rng.between(max(SMALLEST_PIXELS, largest / 4), largest))
        colour = rng.one(("black", "black", "white", *COLOURS))
        rgb = draw_rgb(rng, colour)
        background = draw_background(rng, [rgb])
        if background is None or ink.mask.width > width - 2 or ink.mask.height > height - 2:
            return None
        if any(abs(brightness(rgb) - brightness(ground)) < _CLEAR for ground in (background.top, background.bottom)):
            return None
        return Sign(text=text, ink=ink, colour=colour, rgb=rgb, width=width, height=height, background=background)

    return rng.until(draw)


def draw_sign_image(rng: SampleRng, sign: Sign) -> SampleImage:
    """Returns the sign's pixels, and each character, as labels for the vision encoder."""
    canvas = draw_ground(rng, sign.background, sign.width, sign.height)
    mask = sign.ink.mask
    cx = rng.between(mask.width / 2 + 1, sign.width - mask.width / 2 - 1)
    cy = rng.between(mask.height / 2 + 1, sign.height - mask.height / 2 - 1)
    if rng.chance(0.4):
        cx, cy = sign.width / 2, sign.height / 2
    left, top = round(cx - mask.width / 2), round(cy - mask.height / 2)
    paste(canvas, mask, sign.rgb, cx, cy)
    characters = sign.text.replace(" ", "")
    objects = tuple(
        Seen(
            kind="text",
            name=character,
            colour=sign.colour,
            size="medium",
            cx=left + (x0 + x1) / 2,
            cy=top + (y0 + y1) / 2,
            box=(left + x0, top + y0, left + x1, top + y1),
        )
        for character, (x0, y0, x1, y1) in zip(characters, sign.ink.boxes, strict=True)
    )
    return SampleImage(pixels=finish(rng, canvas), objects=objects)
