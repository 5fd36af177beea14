"""Boxes of one completion: read with the special tokens that its text leaves out, and without its reasoning."""

import random

import pytest

from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.checkpoint.location import DEFAULT_MODEL
from glimpse.engine.checkpoint.text.grounding import Grounding
from glimpse.engine.checkpoint.text.output_processor import OutputProcessor
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import FinishReason, TokenEvent
from glimpse.engine.protocol.sampling_params import ReasoningTags
from glimpse.media.cache.request_media import MediumOrigin
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.placement import ImagePlacement, ImageSource
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.completion_parser import CompletionParser, ReasoningReader
from glimpse.server.generation.grounding import GroundingReader, placements
from glimpse.server.generation.medium_usage import PromptMedium

TOKENIZER = load_tokenizer(DEFAULT_MODEL)
FORMS = FAMILIES["Qwen2VLForConditionalGeneration"].grounding
IMAGES = [
    ImagePlacement(source=ImageSource(width=width, height=100), plan=SmartResize().plan(100, width))
    for width in (300, 200)
]
BOX = "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(500,600)<|box_end|>"
TAGS = ReasoningTags(opening="<think>", closing="</think>")


async def read(
    text: str, *, seed: int = 0, stop: tuple[str, ...] = (), reasoning: ReasoningTags | None = None
) -> tuple[str, tuple[Grounding, ...]]:
    """Returns the text of a completion, in events of a few tokens, and its boxes."""

    def parser(hidden: frozenset[int], stop: tuple[str, ...]) -> CompletionParser:
        thoughts = None if reasoning is None else ReasoningReader(reasoning, TOKENIZER, include=True)
        return CompletionParser(OutputProcessor(TOKENIZER, stop=stop, hidden_ids=hidden), None, thoughts)

    shown = parser(TOKENIZER.special_ids, stop)
    reader = GroundingReader(parser(frozenset(), stop), FORMS, IMAGES)
    token_ids, draw, answer = TOKENIZER.encode(text), random.Random(seed), ""
    while token_ids:
        count = draw.randint(1, 5)
        some, token_ids = token_ids[:count], token_ids[count:]
        event = TokenEvent(request_id="r", token_ids=some, finish=None if token_ids else FinishReason.LENGTH)
        delta = shown.feed(event)
        reader.feed(event, delta)
        answer += delta.text
        if delta.finish is not None:
            break
    return answer, await reader.find("")


@pytest.mark.parametrize("seed", range(5))
async def test_special_tokens_are_read_but_not_shown(seed: int) -> None:
    text, groundings = await read(f"The {BOX} sits.", seed=seed)
    assert text == "The cat(100,200),(500,600) sits."
    (found,) = groundings
    assert (found.image_index, found.label) == (1, "cat")
    assert [*found.corners[0], *found.corners[1]] == pytest.approx([20, 20, 100, 60])


@pytest.mark.parametrize("seed", range(5))
async def test_what_follows_a_stop_string_is_not_read(seed: int) -> None:
    text, groundings = await read(f"{BOX} It (5) sits. {BOX}", seed=seed, stop=(",(500,600) It",))
    assert text == "cat(100,200)"
    # The stop string contains a special token of the box.
    assert len(groundings) == 1


async def test_reasoning_is_not_read() -> None:
    text, groundings = await read(f"<think>maybe {BOX}{BOX}</think>{BOX}", reasoning=TAGS)
    assert (text, len(groundings)) == ("cat(100,200),(500,600)", 1)


def test_embeddings_in_place_of_an_image_are_refused() -> None:
    span = MediaSpan(kind=MediaKind.IMAGE, start=0, num_tokens=1, key=bytes(32), grid=())
    medium = PromptMedium(span=span, origin=MediumOrigin(), is_embedding=True)
    with pytest.raises(InvalidRequest, match="embeddings in place of an image have no pixels"):
        placements([medium])
