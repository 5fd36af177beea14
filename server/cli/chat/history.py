"""The conversation so far: what the next request sends, and what /save writes."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glimpse.client import Audio, ChatOptions, Document, Image, Message, Video
from glimpse.server.cli.chat.attachments import Attachment

_PART = re.compile(r"messages\[(\d+)\]\.content\[(\d+)\]")
_PARTS = {Image: "image_url", Video: "video_url", Audio: "audio_url", Document: "document"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question and its answer."""

    question: str
    attachments: Sequence[Attachment]
    answer: str


@dataclass(slots=True, kw_only=True)
class ChatHistory:
    """Grows by a turn when a question is answered."""

    system: str | None = None
    """The system message."""
    model: str | None = None
    """Name of the model that is asked; None for the server's own choice."""
    models: Sequence[str] = ()
    """Names of the models of the server."""
    attachments: list[Attachment] = field(default_factory=list[Attachment])
    """Media of the next question."""
    turns: list[Turn] = field(default_factory=list[Turn])

    def messages(self, question: str) -> list[Message]:
        """Returns the messages of a request that asks the next question."""
        messages = [] if self.system is None else [Message("system", self.system)]
        for turn in self.turns:
            messages += [_user(turn.attachments, turn.question), Message("assistant", turn.answer)]
        return [*messages, _user(self.attachments, question)]

    def options(self, options: ChatOptions) -> ChatOptions:
        """Returns the options of the next question's request: these, and the model."""
        return options if self.model is None else {**options, "model": self.model}

    def add(self, question: str, answer: str) -> None:
        """Appends the question, which takes the attachments, and its answer."""
        self.turns.append(Turn(question=question, attachments=tuple(self.attachments), answer=answer))
        self.attachments.clear()

    def attachment(self, field: str) -> Attachment | None:
        """Returns the medium that a field of the next question's request is about; None for another field."""
        if (match := _PART.match(field)) is None:
            return None
        message, part = int(match[1]) - (self.system is not None), int(match[2])
        media = self.attachments if message // 2 == len(self.turns) else self.turns[message // 2].attachments
        return media[part] if part < len(media) else None

    def clear(self) -> None:
        """Begins anew. The system message stays."""
        self.turns.clear()
        self.attachments.clear()

    def save(self, path: Path) -> None:
        """Writes the conversation: a name that ends in .json gets OpenAI's messages, another one Markdown.

        Raises:
            OSError: the file cannot be written.
        """
        if path.suffix == ".json":
            path.write_text(
                json.dumps([*self._openai_messages()], indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        else:
            path.write_text("\n\n".join(self._markdown()) + "\n", encoding="utf-8")

    def _markdown(self) -> Iterator[str]:
        if self.system is not None:
            yield f"**System:** {self.system}"
        for turn in self.turns:
            names = "".join(f"\n\n- {each.name}" for each in turn.attachments)
            yield f"**You:** {turn.question}{names}"
            yield f"**Model:** {turn.answer}"

    def _openai_messages(self) -> Iterator[dict[str, Any]]:
        if self.system is not None:
            yield {"role": "system", "content": self.system}
        for turn in self.turns:
            media = [_openai_part(each) for each in turn.attachments]
            yield {"role": "user", "content": [*media, {"type": "text", "text": turn.question}]}
            yield {"role": "assistant", "content": turn.answer}


def _user(attachments: Sequence[Attachment], question: str) -> Message:
    return Message("user", [*(each.medium for each in attachments), question])


def _openai_part(attachment: Attachment) -> dict[str, Any]:
    kind, source = _PARTS[type(attachment.medium)], attachment.medium.source
    url = source if isinstance(source, str) else Path(attachment.name).expanduser().resolve().as_uri()
    return {"type": kind, kind: {"url": url}}
