"""Words for prompts, and a vocabulary of made-up ones for tokenizers to learn.

Every word of `COMMON` is one token to the tokenizers of trained models and of `bench.make_checkpoint`.
"""

import random
from collections.abc import Iterator
from itertools import pairwise

_COMMON = """
about after again air all along also and animal another any are around away back because been before below between
blue book both boy but call came can car change children city close come could country cut day did different does door
down each early earth eat end every eye face family far father feet few find fire first follow food for form found
four from girl give good great green group grow had hand hard has have head hear help her here high him his home house
how idea into just keep kind know land large last learn leave left letter life light like line list little live long
look made make man many may mean men might mile more most mother mountain move much must name near need never new next
night not now number off often old one only open other our out over own page paper part people picture place plant
play point read real red right river run said same say school sea second see seem sentence set she should show side
small some soon sound start state still stop story study such take talk tell than that the their them then there these
they thing think this those thought three through time tree try turn two under until use very walk want was watch
water way well went were what when where which while white who why will with without word work world would write year
you young your
"""
COMMON = tuple(_COMMON.split())

_HEADS = (
    "b",
    "br",
    "ch",
    "d",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "qu",
    "r",
    "s",
    "st",
    "t",
)
_TAILS = ("a", "ai", "an", "ar", "e", "ea", "el", "en", "er", "i", "in", "is", "o", "on", "or", "ou", "u", "un", "y")


def common_text(draw: random.Random, num_words: int) -> str:
    """Returns `number` random common words."""
    return " ".join(draw.choices(COMMON, k=num_words))


def invented_texts(seed: int, num_words: int) -> Iterator[str]:
    """Yields texts of common words and invented ones with decreasing frequency."""
    draw = random.Random(seed)
    words = list(dict.fromkeys(_invent(draw) for _ in range(num_words)))
    for index, (word, other) in enumerate(pairwise(words)):
        repeated = f" {word}" * (2 + 2000 // (index + 10))
        yield f"{common_text(draw, 40)}{repeated} {other}"


def _invent(draw: random.Random) -> str:
    return "".join(draw.choice(_HEADS) + draw.choice(_TAILS) for _ in range(draw.randint(2, 4)))
