"""A request inside the engine: its tokens, how many of them are computed, and the blocks that hold their KV.

One counter catches up with another: `num_computed_tokens` with `num_tokens`. Prefill, a chunk of it, a prefix found in
the cache, decode and the return from a preemption differ in nothing else. Knows neither when a sequence runs nor where
blocks come from.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.plan import PENDING_TOKEN_ID, Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol import Generate, MediaInput
from glimpse.engine.sampling_params import SamplingParams
from glimpse.engine.scheduling.ngram_proposer import NgramProposer

KEY_BYTES = 32


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One prompt and its answer so far."""

    sequence_id: int
    """Counts up in the order of arrival."""
    request_id: str
    priority: int
    """Smaller is sooner."""
    cache_salt: str
    token_ids: list[int]
    """The prompt, then what was generated. The last may be PENDING_TOKEN_ID: it is being computed."""
    num_prompt_tokens: int
    spans: tuple[MediaSpan, ...]
    """The media of the prompt, in the order of `start`, none inside another."""
    contents: dict[bytes, MediaContent]
    """Key of a medium → what it is made of."""
    sampling: SamplingParams
    max_tokens: int
    """The most tokens generated: what was asked for, or what the context window leaves."""
    end_token_ids: frozenset[int]
    """Tokens that end the answer."""
    proposer: NgramProposer = field(default_factory=NgramProposer)
    num_computed_tokens: int = 0
    """Tokens, from the first, whose KV is in the sequence's blocks."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared when the sequence was first admitted."""
    encoded_keys: set[bytes] = field(default_factory=set[bytes])
    """Keys of the media that were encoded for it; of the others it found the outputs, or what was computed of them."""
    block_table: list[int] = field(default_factory=list[int])
    """Ids of the blocks that the sequence holds, in the order of its tokens."""
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    """Names of the contents of its first full blocks, as far as anyone asked for them."""
    admitted: bool = False
    """It ran, be it that it waits again."""
    started: bool = False
    """The runner knows it."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) - (self.token_ids[-1] == PENDING_TOKEN_ID)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_complete(self) -> bool:
        """It has all the tokens that it may have, be it that the last is still promised."""
        return self.num_generated >= self.max_tokens

    @property
    def decodes(self) -> bool:
        """It wants a single token computed."""
        return self.num_uncomputed_tokens == 1 and not self.is_complete

    @property
    def priority_key(self) -> tuple[int, int]:
        """Smaller goes first, and is preempted last."""
        return (self.priority, self.sequence_id)

    def append_pending_token(self) -> None:
        """Counts a token that is being computed as the next one."""
        self.token_ids.append(PENDING_TOKEN_ID)

    def drop_pending_token(self) -> None:
        """Takes `append_pending_token` back, if there is one."""
        del self.token_ids[self.num_known_tokens :]

    def append_token(self, token_id: int) -> None:
        """Appends a generated token, or fulfils the promise of it."""
        self.drop_pending_token()
        self.token_ids.append(token_id)


def spans_between(spans: Many[MediaSpan], start: int, end: int) -> Iterator[MediaSpan]:
    """Those of the spans, which are in order and apart, that have a token from `start` to before `end`."""
    for index in range(bisect_right(spans, start, key=lambda span: span.end), len(spans)):
        if max(spans[index].start, start) >= end:
            return
        yield spans[index]


def make_sequence(
    sequence_id: int,
    request: Generate,
    *,
    max_model_len: int,
    vocab_size: int,
    hidden_size: int,
    eos_token_ids: Iterable[int] = (),
) -> Sequence:
    """Checks a request and makes it a sequence.

    Raises:
        EngineError: PROMPT_TOO_LONG where the window leaves no room for an answer, UNSUPPORTED where the sampling
            parameters name a token that the model does not have, INTERNAL where the prompt or its media are not what a
            front end may send.
    """
    num_prompt_tokens = len(request.token_ids)
    if num_prompt_tokens >= max_model_len:
        raise EngineError(
            EngineErrorCode.PROMPT_TOO_LONG,
            f"the prompt has {num_prompt_tokens} tokens; "
            f"the model's context window is {max_model_len} tokens (prompt and answer together)",
        )
    _check_tokens(request.token_ids, vocab_size)
    _check_sampling(request.sampling, vocab_size)
    for medium in request.media:
        _check_medium(medium, hidden_size)
    return Sequence(
        sequence_id=sequence_id,
        request_id=request.request_id,
        priority=request.priority,
        cache_salt=request.cache_salt,
        token_ids=list(request.token_ids),
        num_prompt_tokens=num_prompt_tokens,
        spans=_sorted_spans(request.media, num_prompt_tokens),
        contents={medium.span.key: medium.content for medium in request.media},
        sampling=request.sampling,
        max_tokens=min(request.sampling.max_tokens, max_model_len - num_prompt_tokens),
        end_token_ids=_end_token_ids(request.sampling, eos_token_ids),
    )


def _end_token_ids(sampling: SamplingParams, eos_token_ids: Iterable[int]) -> frozenset[int]:
    # With a grammar the sampler gives an end token only where the answer ends, also if it is to be ignored elsewhere.
    ignores_eos = sampling.ignore_eos and sampling.grammar is None
    return frozenset((*sampling.stop_token_ids, *(() if ignores_eos else eos_token_ids)))


def _check_tokens(token_ids: Many[int], vocab_size: int) -> None:
    if not token_ids:
        raise EngineError(EngineErrorCode.INTERNAL, "the prompt has no tokens")
    for stray in (min(token_ids), max(token_ids)):
        if not 0 <= stray < vocab_size:
            raise EngineError(
                EngineErrorCode.INTERNAL,
                f"the prompt contains the token id {stray}; the model's vocabulary has {vocab_size} tokens",
            )


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    named = (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids))
    for parameter, token_ids in named:
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise EngineError(
                    EngineErrorCode.UNSUPPORTED,
                    f"{parameter} names the token id {token_id}; the model's vocabulary has {vocab_size} tokens",
                )


def _check_medium(medium: MediaInput, hidden_size: int) -> None:
    """Refuses what would fail in the runner, together with other sequences of the same step."""
    span, content = medium.span, medium.content
    if len(span.key) != KEY_BYTES:
        raise EngineError(EngineErrorCode.INTERNAL, f"media key: expected {KEY_BYTES} bytes, got {len(span.key)}")
    if isinstance(content, Embeddings) and content.num_values != span.num_tokens * hidden_size:
        raise EngineError(
            EngineErrorCode.INTERNAL,
            f"media embeddings: expected {hidden_size} values for each of the {span.num_tokens} placeholder tokens, "
            f"got {content.num_values} values",
        )


def _sorted_spans(media: Many[MediaInput], num_prompt_tokens: int) -> tuple[MediaSpan, ...]:
    spans = tuple(sorted((medium.span for medium in media), key=lambda span: span.start))
    end = 0
    for span in spans:
        if span.num_tokens < 1 or span.start < end or span.end > num_prompt_tokens:
            raise EngineError(
                EngineErrorCode.INTERNAL,
                f"media span: tokens {span.start} to {span.end} are outside the prompt of {num_prompt_tokens} tokens, "
                "or overlap another medium",
            )
        end = span.end
    return spans
