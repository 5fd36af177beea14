"""The short texts that are printed in images. Data, and one function that draws from it."""

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase, digits

from models.training.rng import SampleRng

_TRAINED = """
    ace act add age air ant ape arm art ask axe bad bag bat bed bee beg bell belt big bike bird bit blue boat body bone
    book boot bowl box boy bread brick bus busy cab cake call calm camp cap car card care cat chair chin city clay clock
    cloud club coal coat code coin cold cook cool corn cow crab cup cut dad dance dark day deep deer desk dig dish do
    dog door dove down draw dress drum dry duck dust ear earth easy eat egg elbow end exit eye face fall fan farm fast
    fat fear feet file find fine fire fish five flag flat fly fog food foot fork four fox frog fruit fun game gate gift
    girl give go goat gold golf good grape grass green grow guest gum hair half hall hand happy hat hawk he head heart
    heat help hen here hill hold home honey hook hope horn horse hot house hug hunt ice idea in ink iron it jam jar jaw
    jeep job join joke joy juice jump key kick kind king kiss kite knee knife lake lamp land last late leaf left leg
    lemon lid life lift light lime lion lip list log long look lost love luck lunch mad mail main man map mask max me
    meal meat melon menu mice milk mine mix moon more mouse mouth mud mug music nail name neck nest net new nice night
    no nose note now nut oak of oil old on one open oven owl page paint pan paper park party path pay peach pear pen
    pet piano pie pig pin pink pipe pizza plan play plum poem pond pool pot press pull pump push queen quick quiz rabbit
    race radio rain rat red rest rice rich ring road robot rock roof room rope rose row rug run sad safe sail salt sand
    save saw sea seal seat see seed sell send shark sheep ship shirt shoe shop show sick side sign silk sing sink six
    skin sky sleep slow snail snow soap sock sofa soft song soup spoon sport stamp stand star stay step stone stop store
    sun swan swim table tail talk tall tank tape taxi tea team ten tent test time tin tip tired toe tool top toy tram
    tree trip truck try tuna two ugly under up use van vase very view vote wait walk wall want war warm wash watch water
    wave wax way we week well west wet wheel white wide wife win wind wine wing wolf wood wool word work worm yard year
    yes you young zebra zero zone zoo button candle dragon flower garden hammer island jungle kitchen ladder market
    number orange pencil picture rocket school silver summer ticket tomato travel window winter yellow
    """
_UNSEEN = """
    apple arch baby back ball band barn bear beach bank brush bug cave cent chef clip cube cream dawn dice diver edge
    elk echo film first foam fuel gap gem glass glove goose hello hero hive hut inch jet jewel jug kiwi knot lawn lens
    lock loud maze mint moth navy nine noon okay opal palm pack pea pilot pony quilt raft reef river rust sauce shell
    skate slim snack spice straw sugar thumb tiger tube tulip unit veil vest wagon whale wish yoga yak zip planet
    bottle camera doctor forest guitar basket spring bridge
    """

WORDS = tuple(_TRAINED.split())
"""For training."""
HELD_OUT_WORDS = tuple(_UNSEEN.split())
"""Only for judging."""


def draw_text(rng: SampleRng) -> str:
    """A number, a word or letters without a meaning."""
    match rng.weighted({"number": 3, "word": 4, "letters": 3, "code": 1}):
        case "number":
            return _characters(rng, digits)
        case "word":
            return _cased(rng, rng.one(HELD_OUT_WORDS if rng.held_out else WORDS))
        case "letters":
            return _letters(rng)
        case _:
            # Without those that look alike.
            return _characters(rng, "23456789ABCDEFGHJKLMNPQRSTUVWXYZ")


def any_name(rng: SampleRng, known: Sequence[str]) -> str:
    """One of those known, or in half of training one such as "tovaki", so that it is learnt to copy names."""
    if rng.held_out or rng.chance(0.5):
        return rng.one(known)
    return "".join(rng.one("bcdfghjklmnprstvwz") + rng.one("aeiou") for _ in range(rng.source.randint(1, 4)))


def _letters(rng: SampleRng) -> str:
    text = _characters(rng, ascii_uppercase)
    if len(text) == 1:
        return rng.one(ascii_uppercase.replace("I", "").replace("O", ""))
    return _characters(rng, ascii_lowercase.replace("l", "")) if rng.chance(0.3) else text


def _characters(rng: SampleRng, alphabet: str) -> str:
    length = rng.weighted({1: 20, 2: 25, 3: 25, 4: 20, 5: 4, 6: 3, 7: 2, 8: 1})
    return "".join(rng.one(alphabet) for _ in range(length))


def _cased(rng: SampleRng, word: str) -> str:
    return rng.one((word.upper(), word.upper(), word.lower(), word.capitalize()))
