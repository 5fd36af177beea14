"""Adds up what a request uses while it is generated: tokens of the prompts and completions, and media."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from glimpse.engine.protocol.messages import RequestStats
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.kind import MediaKind
from glimpse.server.generation.completion_parser import ParsedDelta
from glimpse.server.generation.medium_usage import MediumUsage, medium_usages
from glimpse.server.generation.prompts import LoadedPrompt


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and media that a request has used so far."""

    prompt_tokens: int
    """Includes media tokens. Each prompt counts once, however many completions it has."""
    media_tokens: Mapping[MediaKind, int]
    """The part of `prompt_tokens` that stands for media, by kind."""
    cached_tokens: int
    """The part of `prompt_tokens` that the prefix cache held when the first completion of each prompt began."""
    completion_tokens: int
    reasoning_tokens: int | None = None
    """The part of `completion_tokens` that is reasoning; None if completions are not searched for it."""
    media_usage: MediaUsage | None = None
    """Fetching and decoding of the media; None if the request has no media."""
    num_encoded_media: int = 0
    """Media that the engine's encoder processed for this request."""
    media: tuple[MediumUsage, ...] = ()
    """Each medium of the request, in order."""
    encoder_cache_hits: int = 0
    """Media that needed no encoder run, because their encoder output or the KV blocks after them were cached."""


class UsageCounter:
    """Adds up the usage of a request."""

    def __init__(self, prompts: Sequence[LoadedPrompt], *, counts_reasoning: bool) -> None:
        self.num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._media_tokens = sum((Counter(prompt.media_tokens) for prompt in prompts), Counter[MediaKind]())
        # At most one prompt has media: requests with several prompts are text only.
        self._media_usage = next((prompt.media_usage for prompt in prompts if prompt.media_usage is not None), None)
        self._seen = next(((index, prompt.seen) for index, prompt in enumerate(prompts) if prompt.seen), None)
        """(prompt index, its media) of the prompt that has media."""
        self._media: tuple[MediumUsage, ...] = ()
        self._num_encodable = sum(prompt.num_encodable for prompt in prompts)
        self._num_encoded = 0
        self._completion_tokens = 0
        self._counts_reasoning = counts_reasoning
        self._reasoning_tokens = Counter[tuple[int, int]]()
        """(prompt index, completion index) → tokens of the reasoning so far."""
        self._stats: dict[int, RequestStats] = {}
        """Prompt index → the statistics of its completions that have begun."""
        self._num_cached = 0
        self._begun: set[tuple[int, int]] = set()
        """(prompt index, completion index) of the completions that have begun."""

    @property
    def encoder_cache_hits(self) -> int:
        """Media of the request less those that were encoded; several completions of a prompt encode its media once."""
        return max(0, self._num_encodable - self._num_encoded)

    def add(self, prompt_index: int, completion_index: int, delta: ParsedDelta) -> Usage:
        """Adds a delta of a completion and returns the usage up to it."""
        self._completion_tokens += delta.num_tokens
        if self._counts_reasoning:
            self._reasoning_tokens[prompt_index, completion_index] = delta.num_reasoning_tokens
        if (prompt_index, completion_index) not in self._begun:
            self._begun.add((prompt_index, completion_index))
            stats = self._stats.get(prompt_index)
            self._stats[prompt_index] = delta.stats if stats is None else _of_both(stats, delta.stats)
            self._num_cached = sum(each.num_cached_tokens for each in self._stats.values())
            self._num_encoded += len(delta.stats.encoded_media)
            if self._seen is not None and self._seen[0] == prompt_index:
                self._media = medium_usages(self._seen[1], self._stats[prompt_index])
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            media_tokens=self._media_tokens,
            cached_tokens=self._num_cached,
            completion_tokens=self._completion_tokens,
            reasoning_tokens=self._reasoning_tokens.total() if self._counts_reasoning else None,
            media_usage=self._media_usage,
            num_encoded_media=self._num_encoded,
            media=self._media,
            encoder_cache_hits=self.encoder_cache_hits,
        )


def _of_both(first: RequestStats, second: RequestStats) -> RequestStats:
    """Returns the statistics of a prompt from those of two completions.

    Later completions hit the blocks that the first one computed: not a saving, so the smallest count holds.
    """
    return replace(
        first,
        num_cached_tokens=min(first.num_cached_tokens, second.num_cached_tokens),
        encoded_media=[*first.encoded_media, *second.encoded_media],
    )
