"""Adds up what a request uses while it is answered: tokens of the prompts and completions, and media."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from glimpse.engine.checkpoint.text.output_processor import Delta
from glimpse.engine.protocol.messages import NO_STATS, MediaInput, RequestStats
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.kind import MediaKind
from glimpse.server.generation.medium_usage import CacheTier, PromptMedium, cache_tier, media_tokens
from glimpse.server.telemetry.timings import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPrompt:
    """A prompt that is ready for the engine."""

    token_ids: list[int]
    media: list[MediaInput]
    media_usage: MediaUsage | None = None
    """How its media were loaded; None if it has none."""
    seen: tuple[PromptMedium, ...] = ()
    """Media without their content, in prompt order."""
    parts: tuple[Sequence[str | None], ...] = ()
    """What each medium of the request became: itself (None), or the texts and images (None) of a document."""

    @property
    def had_media(self) -> bool:
        """Whether the prompt did not have to wait for media."""
        return self.media_usage is None or not (self.media_usage.num_decoded or self.media_usage.num_fetched)


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens and media that a request has used so far. Who asks for the request makes it, and reads it at any time."""

    prompt_tokens: int = 0
    """Includes media tokens. Each prompt counts once, however many completions it has."""
    completion_tokens: int = 0
    media_usage: MediaUsage | None = None
    """Fetching and decoding of the media; None if the request has no media."""
    stats: dict[int, RequestStats] = field(default_factory=dict[int, RequestStats])
    """Prompt index → what the engine measured for its completions that have begun."""
    timings: Timings | None = None
    """How long the stages took; None: nobody asked, or there is no token yet."""
    _media: dict[int, Sequence[PromptMedium]] = field(default_factory=dict[int, Sequence[PromptMedium]])
    """Prompt index → its media."""
    _reasoning_tokens: dict[int, int] = field(default_factory=dict[int, int])
    """Index of a completion that has begun → tokens of the reasoning so far."""

    def add_prompt(self, index: int, prompt: LoadedPrompt) -> None:
        self.prompt_tokens += len(prompt.token_ids)
        if prompt.media_usage is not None:
            self.media_usage = prompt.media_usage + (self.media_usage or MediaUsage())
            self._media[index] = prompt.seen

    def add_delta(self, prompt_index: int, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        before = self._reasoning_tokens.get(delta.index)
        if before is None:
            self.add_stats(prompt_index, delta.stats)
        if before != delta.num_reasoning_tokens:  # fewer once a tag turns out to be complete
            self._reasoning_tokens[delta.index] = delta.num_reasoning_tokens

    def add_stats(self, prompt_index: int, stats: RequestStats) -> None:
        """Adds what the engine measured until a prompt was computed. Several completions may each compute it.

        Later completions hit the blocks that the first one computed: not a saving, so the smallest count holds.
        """
        first = self.stats.get(prompt_index)
        if first is not None:
            num_cached_tokens = min(first.num_cached_tokens, stats.num_cached_tokens)
            encoded_media = [*first.encoded_media, *stats.encoded_media]
            stats = replace(first, num_cached_tokens=num_cached_tokens, encoded_media=encoded_media)
        self.stats[prompt_index] = stats

    @property
    def reasoning_tokens(self) -> int:
        """The part of `completion_tokens` that is reasoning."""
        return sum(self._reasoning_tokens.values())

    @property
    def cached_tokens(self) -> int:
        """The part of `prompt_tokens` that the prefix cache held when the first completion of each prompt began."""
        return sum(stats.num_cached_tokens for stats in self.stats.values())

    @property
    def media(self) -> list[PromptMedium]:
        """The media of the request, in order."""
        return [medium for index in sorted(self._media) for medium in self._media[index]]

    @property
    def cache_tiers(self) -> Iterator[CacheTier]:
        """What caches held of each medium."""
        for index in sorted(self._media):
            stats = self.stats.get(index, NO_STATS)
            for number, medium in enumerate(self._media[index]):
                yield cache_tier(medium, stats.num_cached_tokens, is_encoded=number in stats.encoded_media)

    @property
    def media_tokens(self) -> Counter[MediaKind]:
        """The part of `prompt_tokens` that stands for media, by kind."""
        return media_tokens(self.media)

    @property
    def num_encoded_media(self) -> int:
        """Media that the engine's encoder processed for this request."""
        return sum(len(stats.encoded_media) for stats in self.stats.values())

    @property
    def encoder_cache_hits(self) -> int:
        """Media that needed no encoder run, because their encoder output or the KV blocks after them were cached."""
        return max(0, sum(not medium.is_embedding for medium in self.media) - self.num_encoded_media)
