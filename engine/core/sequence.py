"""A request inside the engine: its tokens, how many of them are computed, and the blocks that hold their KV.

One counter catches up with another: `num_computed_tokens` with `num_tokens`. Prefill, a chunk of it, a prefix found in
the cache, decode and the return from a preemption differ in nothing else.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Protocol

import msgspec

from glimpse.engine.core.fairness.flow import Flow
from glimpse.engine.core.ngram_proposer import NgramProposer
from glimpse.engine.core.plan import PENDING_TOKEN_ID
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.media import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol.messages import Embed, Generate, MediaInput, RequestStats
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.protocol.sampling_params import SamplingParams

KEY_BYTES = 32
_NAMESPACE_DOMAIN = b"glimpse.media.namespace.v1"
_NO_SAMPLING = SamplingParams(max_tokens=1)
"""Parameters of sequences that pool, which end with their prompt."""


class TriggerWatcher(Protocol):
    """Waits for the trigger of one answer's grammar."""

    def append(self, token_id: int) -> int:
        """Reads the next token. Returns the number of last tokens that have a part of the trigger; 0: none yet."""
        ...

    def before(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the first of the tokens that may come next, none of which completes the trigger."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One prompt and its answer so far."""

    sequence_id: int
    """Counts up in the order of arrival."""
    request_id: str
    priority: int
    """Smaller is served sooner."""
    cache_salt: str
    client: str = ""
    """Who the request is computed for."""
    flow_name: str = ""
    """Shared by the completions of a request."""
    flow: Flow = field(default_factory=Flow)
    """The counters of its request and client. Set by the scheduler."""
    num_served_tokens: int = 0
    """Tokens that count as service of its client. Those computed again after a preemption do not."""
    protected_until: int = 0
    """Number of tokens before which the sequence is not preempted for fairness."""
    is_running: bool = False
    last_turn: int = 0
    """Position in the order of decodes: those with the smallest are next."""
    queued_since: float | None = None
    """Time of arrival, in seconds of the core's clock. None: a step with some of its tokens was planned since."""
    stats: RequestStats = field(default_factory=RequestStats)
    """What was measured; `current_stats` adds what is counted elsewhere."""
    token_ids: list[int]
    """The prompt, then the generated tokens. The last may be PENDING_TOKEN_ID: it is being computed."""
    num_prompt_tokens: int
    spans: tuple[MediaSpan, ...]
    """The media of the prompt, in the order of `start`, without overlap."""
    contents: dict[bytes, MediaContent]
    """Media key → content."""
    sampling: SamplingParams
    pooling: PoolingParams | None = None
    """The prompt's hidden states become an embedding, and the sequence ends with its prompt. None: tokens follow."""
    max_tokens: int
    """The most tokens to generate: as requested, or what the context window leaves."""
    end_token_ids: frozenset[int]
    """Tokens that end the answer."""
    eos_token_ids: frozenset[int] = frozenset()
    """The model's end tokens."""
    trigger: TriggerWatcher | None = None
    """Waits for the trigger of the grammar. None: there is none to wait for."""
    compiled: object = None
    """The future of its grammar, which is held here while it waits and runs: else many grammars at once would be
    compiled again."""
    grammar_start: int | None = None
    """Index in the answer of the first token that a grammar with a trigger constrains. None: it was not triggered."""
    indivisible: tuple[tuple[int, int], ...] = ()
    """(first token, end) of the parts of the prompt that a step computes whole, ascending: their tokens attend to each
    other."""
    proposer: NgramProposer = field(default_factory=NgramProposer)
    num_computed_tokens: int = 0
    """Tokens, from the first, whose KV is in the sequence's blocks."""
    encoded_keys: set[bytes] = field(default_factory=set[bytes])
    """Keys of the media that were encoded for this sequence. The others were cached, as encoder outputs or as KV."""
    block_table: list[int] = field(default_factory=list[int])
    """Ids of the blocks that the sequence holds, in the order of its tokens."""
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    """Hashes of its first full blocks, computed when needed."""
    admitted: bool = False
    """Whether the sequence has run, even if it is waiting again."""
    started: bool = False
    """The runner knows it."""
    has_ended: bool = False
    """Whether the sequence was removed from the scheduler. Results that arrive later are discarded."""
    _samples_on_host: bool = field(init=False)

    def __post_init__(self) -> None:
        self._samples_on_host = self.sampling.needs_host_sampling

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
    def current_stats(self) -> RequestStats:
        """The statistics of its request up to now."""
        return msgspec.structs.replace(
            self.stats,
            num_computed_prompt_tokens=min(self.num_served_tokens, self.num_prompt_tokens),
            encoded_media=self._encoded_media(),
        )

    def _encoded_media(self) -> list[int]:
        """Indices of the media that were encoded for this sequence. Of equal ones, the first that was not cached."""
        first: dict[bytes, tuple[bool, int]] = {}
        for index, span in enumerate(self.spans):
            if span.key in self.encoded_keys:
                place = (span.end <= self.stats.num_cached_tokens, index)
                first[span.key] = min(first.get(span.key, place), place)
        return sorted(index for _, index in first.values())

    @property
    def is_complete(self) -> bool:
        """Whether the sequence has all the tokens that it may have, even if the last is still pending."""
        return len(self.token_ids) - self.num_prompt_tokens >= self.max_tokens

    @property
    def needs_host_sampling(self) -> bool:
        """The next token does not depend on the model's logits alone."""
        return self._samples_on_host or self.grammar_start is not None

    @property
    def is_constrained(self) -> bool:
        """A grammar constrains the next token."""
        grammar = self.sampling.grammar
        return grammar is not None and (grammar.trigger is None or self.grammar_start is not None)

    @property
    def decodes(self) -> bool:
        """Whether the sequence needs a single token computed, and a token follows."""
        num_tokens = len(self.token_ids)  # written out: called for each sequence in each step
        return (
            num_tokens - self.num_computed_tokens == 1
            and num_tokens - self.num_prompt_tokens < self.max_tokens
            and self.pooling is None
        )

    @property
    def needs_all_states(self) -> bool:
        """Every token of the prompt must be computed for it, even if its KV is in a cache."""
        pooling = self.pooling
        if self.sampling.prompt_logprobs is not None:
            return True
        return pooling is not None and pooling.mode is PoolingMode.MEAN and not pooling.token_ids

    @property
    def priority_key(self) -> tuple[int, int]:
        """Sorts sequences: the smallest is served first and preempted last."""
        return (self.priority, self.sequence_id)

    def part_around(self, end: int) -> tuple[int, int] | None:
        """Returns the indivisible part that has tokens both before and from `end` on; None if there is none."""
        index = bisect_right(self.indivisible, end, key=itemgetter(1))
        if index < len(self.indivisible) and self.indivisible[index][0] < end:
            return self.indivisible[index]
        return None

    def append_pending_token(self) -> None:
        """Appends a placeholder for a token that is being computed."""
        self.token_ids.append(PENDING_TOKEN_ID)

    def drop_pending_token(self) -> None:
        """Removes the pending token, if there is one."""
        del self.token_ids[self.num_known_tokens :]

    def append_token(self, token_id: int) -> None:
        """Appends a generated token, or replaces the pending one with it."""
        if self.token_ids[-1] == PENDING_TOKEN_ID:
            self.token_ids[-1] = token_id
        else:
            self.token_ids.append(token_id)

    def triggers_grammar(self, token_ids: Iterable[int]) -> bool:
        """Reads the last generated tokens. Returns True if the last one triggers the grammar, once for an answer."""
        if self.trigger is None:
            return False
        for token_id in token_ids:
            num_tokens = self.trigger.append(token_id)
            if num_tokens:
                self.grammar_start = self.num_generated - num_tokens
                self.trigger = None
                self.end_token_ids |= self.eos_token_ids  # the end of a grammar is an end, even with `ignore_eos`
                return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What requests are checked against."""

    vocab_size: int
    encoder_row_width: int
    """Values of an encoder output for each placeholder token."""
    eos_token_ids: tuple[int, ...]
    """The model's end tokens."""
    bidirectional_runs: bool = False
    """The tokens of a run of placeholders attend to each other: a step computes them together."""
    has_output_head: bool = True
    """Without one, prompts can be embedded, but not continued."""


def spans_between(spans: Many[MediaSpan], start: int, end: int) -> Iterator[MediaSpan]:
    """Yields the spans with a token from `start` to before `end`. Spans are sorted and do not overlap."""
    for index in range(bisect_right(spans, start, key=lambda span: span.end), len(spans)):
        if max(spans[index].start, start) >= end:
            return
        yield spans[index]


def make_sequence(sequence_id: int, request: Generate | Embed, *, max_model_len: int, model: ModelSpec) -> Sequence:
    """Checks a request and makes a sequence of it.

    Raises:
        EngineError: PROMPT_TOO_LONG if the context window leaves no room for an answer, or for the prompt of an
            embedding; UNSUPPORTED if the sampling parameters contain a token id outside the vocabulary, or tokens are
            to be sampled from a model without an output head; INTERNAL if the front end sent an invalid prompt or
            invalid media.
    """
    num_prompt_tokens = len(request.token_ids)
    pooling = request.pooling if isinstance(request, Embed) else None
    sampling = _NO_SAMPLING if isinstance(request, Embed) else request.sampling
    if (pooling is None or pooling.token_ids) and not model.has_output_head:
        raise EngineError(EngineErrorCode.UNSUPPORTED, "the model has no output head: it makes embeddings alone")
    num_of_media = sum(medium.span.num_tokens for medium in request.media)
    _check_length(num_prompt_tokens, num_of_media, max_model_len, has_answer=pooling is None)
    _check_tokens(request.token_ids, model.vocab_size)
    _check_sampling(sampling, model.vocab_size)
    for medium in request.media:
        _check_medium(medium, model.encoder_row_width)
    media = [_in_namespace(medium, request.cache_salt) for medium in request.media]
    spans = _sorted_spans(media, num_prompt_tokens)
    return Sequence(
        sequence_id=sequence_id,
        request_id=request.request_id,
        priority=request.priority,
        cache_salt=request.cache_salt,
        client=request.client,
        flow_name=request.flow or request.request_id,
        token_ids=list(request.token_ids),
        num_prompt_tokens=num_prompt_tokens,
        spans=spans,
        indivisible=_runs(spans) if model.bidirectional_runs else (),
        contents={medium.span.key: medium.content for medium in media},
        sampling=sampling,
        pooling=pooling,
        max_tokens=min(sampling.max_tokens, max_model_len - num_prompt_tokens) if pooling is None else 1,
        end_token_ids=_end_token_ids(sampling, model.eos_token_ids),
        eos_token_ids=frozenset(model.eos_token_ids),
        proposer=NgramProposer(num_prompt_tokens),
    )


def namespace_key(key: bytes, cache_salt: str) -> bytes:
    """Returns the key of a medium among the requests with this salt: its own without a salt, else its hash with it.

    So encoder outputs are found only by requests of the same salt, and neither usage nor time tells of others' media.
    """
    return hashlib.sha256(_NAMESPACE_DOMAIN + key + cache_salt.encode()).digest() if cache_salt else key


def _in_namespace(medium: MediaInput, cache_salt: str) -> MediaInput:
    if not cache_salt:
        return medium
    span = replace(medium.span, key=namespace_key(medium.span.key, cache_salt))
    return MediaInput(span=span, content=medium.content)


def _end_token_ids(sampling: SamplingParams, eos_token_ids: Iterable[int]) -> frozenset[int]:
    # With a grammar the sampler allows an end token only where the grammar ends, even if `ignore_eos` is set.
    is_free = sampling.grammar is None or sampling.grammar.trigger is not None
    ignores_eos = sampling.ignore_eos and is_free
    return frozenset((*sampling.stop_token_ids, *(() if ignores_eos else eos_token_ids)))


def _check_length(num_prompt_tokens: int, num_of_media: int, max_model_len: int, *, has_answer: bool) -> None:
    excess = num_prompt_tokens + has_answer - max_model_len
    if excess > 0:
        of_media = f", {num_of_media} of them of media" if num_of_media else ""
        together = " (prompt and answer together)" if has_answer else ""
        raise EngineError(
            EngineErrorCode.PROMPT_TOO_LONG,
            f"the prompt has {num_prompt_tokens} tokens{of_media}; the model's context window is {max_model_len} tokens"
            f"{together}: shorten the prompt by {excess} or more",
        )


def _check_tokens(token_ids: Many[int], vocab_size: int) -> None:
    if not token_ids:
        raise EngineError(EngineErrorCode.INTERNAL, "token_ids: expected at least one token, got none")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise EngineError(
                EngineErrorCode.INTERNAL, f"token_ids: expected ids from 0 to {vocab_size - 1}, got {token_id}"
            )


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    budget = sampling.reasoning_budget
    parameters = (
        ("logit_bias", sampling.logit_bias),
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("bad_words", [token_id for word in sampling.bad_word_token_ids for token_id in word]),
        ("reasoning_budget", () if budget is None else budget.closing_token_ids),
    )
    for name, token_ids in parameters:
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise EngineError(
                    EngineErrorCode.UNSUPPORTED,
                    f"'{name}': expected token ids of the vocabulary, from 0 to {vocab_size - 1}, got {token_id}",
                )


def _check_medium(medium: MediaInput, row_width: int) -> None:
    """Refuses what would fail in the runner, together with other sequences of the same step."""
    span, content = medium.span, medium.content
    if len(span.key) != KEY_BYTES:
        raise EngineError(EngineErrorCode.INTERNAL, f"media key: expected {KEY_BYTES} bytes, got {len(span.key)}")
    if isinstance(content, Embeddings) and content.num_values != span.num_rows * row_width:
        raise EngineError(
            EngineErrorCode.INTERNAL,
            f"media embeddings: expected {row_width} values for each of the {span.num_rows} placeholder tokens, "
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
        _check_runs(span)
        end = span.end
    return spans


def _runs(spans: Many[MediaSpan]) -> tuple[tuple[int, int], ...]:
    """Returns (first token, end) of each run of placeholder tokens."""
    return tuple((span.start + offset, span.start + offset + length) for span in spans for offset, length in span.runs)


def _check_runs(span: MediaSpan) -> None:
    end = 0
    for offset, length in span.runs:
        if offset < end or length < 1:
            raise EngineError(EngineErrorCode.INTERNAL, f"media span: runs {span.runs} are empty or overlap")
        end = offset + length
    if end > span.num_tokens:
        raise EngineError(EngineErrorCode.INTERNAL, f"media span: runs {span.runs} exceed its {span.num_tokens} tokens")
