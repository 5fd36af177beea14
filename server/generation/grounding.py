"""Finds the boxes and points in completions. Only the form tells them from other text, special tokens included."""

from collections.abc import Sequence

from msgspec.structs import replace

from glimpse.engine.checkpoint.families.grounding import Form
from glimpse.engine.checkpoint.text.grounding import Grounding, find_groundings
from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.placement import ImagePlacement
from glimpse.server.call.offload import run_sized
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.completion_parser import CompletionParser
from glimpse.server.generation.medium_usage import PromptMedium


class GroundingReader:
    """Finds the boxes and points of one completion. No form says of which image they are: the last one is meant."""

    def __init__(self, parser: CompletionParser, forms: Sequence[Form], images: Sequence[ImagePlacement]) -> None:
        """`parser`: parses the completion a second time, with its special tokens in the text."""
        self._parser = parser
        self._forms = forms
        self._images = images
        self._texts: list[str] = []

    def feed(self, event: TokenEvent, delta: Delta) -> None:
        """Reads an event and the delta that was made of it."""
        if delta.stop_string:  # with special tokens in the text, it may not match
            event = replace(event, token_ids=[*delta.token_ids], finish=FinishReason.LENGTH)
        self._texts.append(self._parser.feed(event).text)

    async def find(self, client: str) -> tuple[Grounding, ...]:
        """Returns what the completion has, once it has ended."""
        text, last = "".join(self._texts), len(self._images) - 1
        return await run_sized(
            client, len(text), find_groundings, text, self._forms, self._images[last], image_index=last
        )


def placements(media: Sequence[PromptMedium]) -> list[ImagePlacement]:
    """Returns those of the images of a prompt. Raises InvalidRequest if one of them has no pixels."""
    found: list[ImagePlacement] = []
    for medium in media:
        if medium.span.kind is not MediaKind.IMAGE:
            continue
        if medium.placement is None:
            raise InvalidRequest("grounding", "expected false, since embeddings in place of an image have no pixels")
        found.append(medium.placement)
    return found
