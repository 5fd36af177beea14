"""Numbered tags that stand for media in prompts: `<|image_1|>`, `<|image_2|>` and so on."""

import re
from dataclasses import dataclass
from typing import Self

from glimpse.engine.text.template import TemplateError


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTags:
    """The tags of a model, which are no tokens. The texts between them are encoded each by itself."""

    start: str
    """What precedes the number."""
    end: str
    """What follows the number."""
    placeholder: str
    """Spelling of the placeholder token, which stands for a medium as a tag does."""

    @classmethod
    def spelled(cls, spelling: str, placeholder: str) -> Self:
        """Returns the tags with this spelling, in which {} stands for the number."""
        start, end = spelling.split("{}")
        return cls(start=start, end=end, placeholder=placeholder)

    def split(self, text: str) -> list[str]:
        """Returns the texts between the tags and placeholders of a prompt.

        Raises:
            TemplateError: the numbers of the tags are not 1, 2 and so on.
        """
        tag = rf"{re.escape(self.start)}(\d+){re.escape(self.end)}"
        texts, numbers, end = list[str](), list[str](), 0
        for found in re.finditer(rf"{tag}|{re.escape(self.placeholder)}", text):
            texts.append(text[end : found.start()])
            numbers += [found[1]] if found[1] else []
            end = found.end()
        expected = [str(number) for number in range(1, len(numbers) + 1)]
        if numbers != expected:
            wrong = next(index for index, number in enumerate(numbers) if number != expected[index])
            raise TemplateError(
                f"expected the tags of media to be numbered in order: {self._tag(expected[wrong])}, got "
                f"{self._tag(numbers[wrong])}"
            )
        return [*texts, text[end:]]

    def _tag(self, number: str) -> str:
        return f"{self.start}{number}{self.end}"
