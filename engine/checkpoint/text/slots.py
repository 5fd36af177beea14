"""Texts that stand for media in prompts: placeholders with what belongs around them, and numbered tags."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.engine.checkpoint.text.special_token_escaping import SpecialTokenEscaper
from glimpse.engine.checkpoint.text.template import ChatTemplate
from glimpse.engine.errors import TemplateError
from glimpse.media.kind import MediaKind

# Qwen2-Audio's published template recognizes audio by the `audio_url` member.
SLOT_PARTS = {kind: {"type": kind.value} for kind in MediaKind} | {MediaKind.AUDIO: {"type": "audio", "audio_url": ""}}
"""Parts of messages that stand for media in chat templates."""


class PlaceholderError(TemplateError):
    """A prompt that does not have one placeholder for each medium."""

    def __init__(self, message: str, *, missing: int | None) -> None:
        super().__init__(message)
        self.missing = missing
        """Index of a medium that has no placeholder; None if it is not known which one has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedTags:
    """The tags of a model, such as `<|image_1|>`, which are no tokens. The texts between them are encoded each by
    itself."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What stands for media in the texts of a model."""

    placeholders: Mapping[MediaKind, str]
    """Spelling of each kind's placeholder."""
    texts: Mapping[MediaKind, str]
    """What stands for a medium of each kind where no template writes it; {} stands for its number, from 1."""
    separator: str
    """Between the parts of a message."""
    tags: NumberedTags | None
    """Tags that stand for images, if there are any."""

    def are_written(self, message: ChatMessage, template: ChatTemplate) -> bool:
        """Returns whether the media of a message are written into its text, because the template does not show them."""
        kinds = {part.kind for part in message.content if isinstance(part, MediaSlot)}
        if not template.reads_text or not kinds <= set(self.placeholders):
            return False
        return any(not self._shows(template, kind) for kind in kinds)

    def _shows(self, template: ChatTemplate, kind: MediaKind) -> bool:
        spellings = [self.placeholders[kind], *([self.tags.start] if self.tags else [])]
        return any(template.shows(SLOT_PARTS[kind], spelling) for spelling in spellings)

    def error(
        self, kind: MediaKind, *, num_media: int, num_placeholders: int, missing: int | None, is_chat: bool
    ) -> PlaceholderError:
        """Returns the error about a prompt that does not have one placeholder for each medium of a kind."""
        message = f"expected one placeholder for each {kind} input, got {num_placeholders} for {num_media}"
        if not is_chat:
            message += f"; write {self._example(kind)} once for each"
        elif num_placeholders < num_media:
            message += "; many chat templates show media only in user messages"
        return PlaceholderError(message, missing=missing)

    def _example(self, kind: MediaKind) -> str:
        text = self.texts[kind]
        return f"{text.replace('{}', '1')}, {text.replace('{}', '2')} and so on," if "{}" in text else text


def make_slots(
    placeholders: Mapping[MediaKind, str], texts: Mapping[MediaKind, str], *, in_lines: bool, numbered_tags: bool
) -> Slots:
    """Returns what stands for media in the texts of a model."""
    texts, image = {**placeholders, **texts}, MediaKind.IMAGE
    return Slots(
        placeholders=placeholders,
        texts=texts,
        separator="\n" if in_lines else "",
        tags=NumberedTags.spelled(texts[image], placeholders[image]) if numbered_tags else None,
    )


class SlotWriter:
    """Writes the contents of one conversation's messages as texts."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._seen: Counter[MediaKind] = Counter()

    def text(self, message: ChatMessage, escaper: SpecialTokenEscaper) -> str:
        """Returns the content of a message, with its media as texts."""
        return self._slots.separator.join(
            self._slot(part.kind) if isinstance(part, MediaSlot) else escaper.escape(part) for part in message.content
        )

    def _slot(self, kind: MediaKind) -> str:
        self._seen[kind] += 1
        return self._slots.texts[kind].replace("{}", str(self._seen[kind]))
