"""Numbers in English words: prompts of SmolVLM say in words how many frames a video has."""

_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_SMALL, _TENS = _WORDS.split()[:20], _WORDS.split()[20:]


def in_words(number: int) -> str:
    """Returns a number from 0 to 999, such as "three hundred and sixty-five", as the library num2words spells it."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_SMALL[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
