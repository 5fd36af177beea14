"""Tells what a request would cost: the tokens of each part, what caches hold, the time to its first token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from glimpse.engine.checkpoint.text.conversation import ChatMessage
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.messages import RequestStats
from glimpse.server.call.context import CallContext
from glimpse.server.generation.medium_usage import CacheTier, PromptMedium, cache_tier
from glimpse.server.generation.usage import LoadedPrompt
from glimpse.server.telemetry.timings import FirstTokenTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PartQuote:
    """A part of a conversation, or a text or an image of a document."""

    message_index: int
    part_index: int
    """Index among the parts of its message."""
    num_tokens: int
    """Tokens of a medium; of a text, those that it has alone."""
    medium: PromptMedium | None = None
    """None: the part is a text."""
    tier: CacheTier = CacheTier.NONE
    """What caches hold of a medium."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What a request would cost now."""

    parts: tuple[PartQuote, ...]
    num_cached_tokens: int
    """Tokens of the prompt in the prefix cache."""
    first_token: FirstTokenTime | None
    """When the first token is expected; None: nothing comparable was measured."""


def make_quote(
    prompt: LoadedPrompt,
    messages: Sequence[ChatMessage],
    stats: RequestStats,
    call: CallContext,
    tokenizer: Tokenizer,
) -> Quote:
    """Returns the quote of a prompt that was built of these messages and of which the engine told `stats`."""
    return Quote(
        parts=tuple(_parts(prompt, messages, stats, tokenizer)),
        num_cached_tokens=stats.num_cached_tokens,
        first_token=call.ticket.expected_first_token(
            stats,
            num_tokens=len(prompt.token_ids),
            num_media_tokens=sum(medium.span.num_tokens for medium in prompt.seen),
        ),
    )


def _parts(
    prompt: LoadedPrompt, messages: Sequence[ChatMessage], stats: RequestStats, tokenizer: Tokenizer
) -> Iterator[PartQuote]:
    inputs, media = iter(prompt.parts), enumerate(prompt.seen)
    for message_index, message in enumerate(messages):
        for part_index, part in enumerate(message.content):
            for each in (part,) if isinstance(part, str) else next(inputs):
                place = partial(PartQuote, message_index=message_index, part_index=part_index)
                if each is not None:
                    yield place(num_tokens=len(tokenizer.encode_plain(each, is_first=False)))
                    continue
                number, medium = next(media)
                is_encoded = number in stats.encoded_media
                tier = cache_tier(medium, stats.num_cached_tokens, is_encoded=is_encoded)
                yield place(num_tokens=medium.span.num_tokens, medium=medium, tier=tier)
