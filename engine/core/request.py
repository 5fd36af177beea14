"""A checked request: the prompt, how its answer is sampled, and where it ends. None of it changes afterwards."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from operator import itemgetter

from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.media import Embeddings, MediaContent, MediaSpan
from glimpse.engine.protocol.messages import Embed, Generate, MediaInput
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.media.kind import MediaKind

KEY_BYTES = 32
_NAMESPACE_DOMAIN = b"glimpse.media.namespace.v1"
_ADAPTER_DOMAIN = b"glimpse.media.adapter.v1"
_NO_SAMPLING = SamplingParams(max_tokens=1)
"""Parameters of sequences that pool, which end with their prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a sequence is computed for."""

    request_id: str
    client: str
    flow_name: str
    """Shared by the completions of a request."""
    priority: int
    """Smaller is served sooner."""
    cache_salt: str
    adapter: bytes
    """Digest of the adapter that computes its tokens; empty: none does."""
    encoder_adapter: bytes
    """Digest of that adapter if it changes the encoder; else empty."""
    prompt_token_ids: tuple[int, ...]
    num_prompt_tokens: int
    max_num_tokens: int
    """The most tokens of prompt and answer: as requested, or what the context window leaves."""
    spans: tuple[MediaSpan, ...]
    """The media of the prompt, in the order of `start`, without overlap."""
    contents: dict[bytes, MediaContent]
    """Media key → content."""
    indivisible: tuple[tuple[int, int], ...]
    """(first token, end) of the parts of the prompt that a step computes whole, ascending: their tokens attend to each
    other."""
    bidirectional_prompt: bool
    """The whole prompt is such a part, on which the KV of each of its tokens depends."""
    sampling: SamplingParams
    needs_host_sampling: bool
    """Value of the property in `SamplingParams`."""
    pooling: PoolingParams | None
    """The prompt's hidden states become an embedding, and the sequence ends with its prompt. None: tokens follow."""
    end_token_ids: frozenset[int]
    """Tokens that end the answer."""
    eos_token_ids: frozenset[int]
    """The model's end tokens."""

    @property
    def needs_all_states(self) -> bool:
        """Every token of the prompt must be computed for it, even if its KV is in a cache."""
        if self.sampling.prompt_logprobs is not None:
            return True
        return self.pooling is not None and self.pooling.needs_all_states

    def part_around(self, end: int) -> tuple[int, int] | None:
        """Returns the indivisible part that has tokens both before and from `end` on; None if there is none."""
        index = bisect_right(self.indivisible, end, key=itemgetter(1))
        if index < len(self.indivisible) and self.indivisible[index][0] < end:
            return self.indivisible[index]
        return None

    def whole_end(self, start: int, end: int, most_tokens: int) -> int:
        """Returns the last end up to `end` in no indivisible part. A part at `start` may go further, if it has at most
        `most_tokens` left."""
        part = self.part_around(end)
        if part is None:
            return end
        first, last = part
        if first > start:
            return first
        return last if last - start <= most_tokens else start


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What requests are checked against."""

    vocab_size: int
    encoder_row_width: int
    """Values of an encoder output for each placeholder token."""
    eos_token_ids: tuple[int, ...]
    """The model's end tokens."""
    bad_phrases: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that no answer has."""
    bidirectional_runs: bool = False
    """The tokens of a run of placeholders of images attend to each other: a step computes them together."""
    bidirectional_prompt: bool = False
    """So do all tokens of a prompt."""
    has_output_head: bool = True
    """Without one, prompts can be embedded, but not continued."""
    adapters: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Digests of the adapters, by name."""
    encoding: Set[bytes] = frozenset()
    """Digests of those that change the encoder."""


def spans_between(spans: Many[MediaSpan], start: int, end: int) -> Iterator[MediaSpan]:
    """Yields the spans with a token from `start` to before `end`. Spans are sorted and do not overlap."""
    for index in range(bisect_right(spans, start, key=lambda span: span.end), len(spans)):
        if max(spans[index].start, start) >= end:
            return
        yield spans[index]


def make_request(message: Generate | Embed, *, max_model_len: int, model: ModelSpec) -> Request:
    """Checks what a client asks for.

    Raises:
        EngineError: PROMPT_TOO_LONG if the context window leaves no room for an answer, or for the prompt of an
            embedding; UNSUPPORTED if the sampling parameters contain a token id outside the vocabulary, or tokens are
            to be sampled from a model without an output head; NO_ADAPTER; INTERNAL if the front end sent an invalid
            prompt or invalid media.
    """
    num_prompt_tokens = len(message.token_ids)
    pooling = message.pooling if isinstance(message, Embed) else None
    sampling = _NO_SAMPLING if isinstance(message, Embed) else _with_bans(message.sampling, model.bad_phrases)
    if (pooling is None or pooling.token_ids) and not model.has_output_head:
        raise EngineError(EngineErrorCode.UNSUPPORTED, "the model has no output head: it makes embeddings alone")
    if message.adapter and message.adapter not in model.adapters:
        raise EngineError(EngineErrorCode.NO_ADAPTER, f"the engine has no adapter {message.adapter!r}")
    num_of_media = sum(medium.span.num_tokens for medium in message.media)
    _check_length(num_prompt_tokens, num_of_media, max_model_len, has_answer=pooling is None)
    _check_tokens(message.token_ids, model.vocab_size)
    _check_sampling(sampling, model.vocab_size)
    for medium in message.media:
        _check_medium(medium, model.encoder_row_width)
    adapter = model.adapters.get(message.adapter, b"")
    encoder_adapter = adapter if adapter in model.encoding else b""
    media = [_in_namespace(medium, message.cache_salt, encoder_adapter) for medium in message.media]
    spans = _sorted_spans(media, num_prompt_tokens)
    max_num_tokens = num_prompt_tokens + sampling.max_tokens
    return Request(
        request_id=message.request_id,
        client=message.client,
        flow_name=message.flow or message.request_id,
        priority=message.priority,
        cache_salt=message.cache_salt,
        adapter=adapter,
        encoder_adapter=encoder_adapter,
        prompt_token_ids=tuple(message.token_ids),
        num_prompt_tokens=num_prompt_tokens,
        max_num_tokens=min(max_num_tokens, max_model_len) if pooling is None else max_num_tokens,
        spans=spans,
        contents={medium.span.key: medium.content for medium in media},
        indivisible=bidirectional_parts(
            num_prompt_tokens, spans, runs=model.bidirectional_runs, prompt=model.bidirectional_prompt
        ),
        bidirectional_prompt=model.bidirectional_prompt,
        sampling=sampling,
        needs_host_sampling=sampling.needs_host_sampling,
        pooling=pooling,
        end_token_ids=_end_token_ids(sampling, model.eos_token_ids),
        eos_token_ids=frozenset(model.eos_token_ids),
    )


def namespace_key(key: bytes, cache_salt: str, adapter: bytes = b"") -> bytes:
    """Returns the key of a medium among the requests with this salt and this adapter of the encoder: its own without
    both, else its hash with them.

    So encoder outputs are found only by requests of the same salt, and neither usage nor time tells of others' media.
    """
    sealed = hashlib.sha256(_ADAPTER_DOMAIN + key + adapter).digest() if adapter else key
    return hashlib.sha256(_NAMESPACE_DOMAIN + sealed + cache_salt.encode()).digest() if cache_salt else sealed


def _in_namespace(medium: MediaInput, cache_salt: str, adapter: bytes) -> MediaInput:
    if (key := namespace_key(medium.span.key, cache_salt, adapter)) == medium.span.key:
        return medium
    span = replace(medium.span, key=key)
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


def _with_bans(sampling: SamplingParams, phrases: tuple[tuple[int, ...], ...]) -> SamplingParams:
    return replace(sampling, bad_word_token_ids=(*sampling.bad_word_token_ids, *phrases)) if phrases else sampling


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    budget = sampling.reasoning_budget
    parameters = (
        ("logit_bias", sampling.logit_bias),
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
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


def bidirectional_parts(
    num_prompt_tokens: int, spans: Many[MediaSpan], *, runs: bool, prompt: bool
) -> tuple[tuple[int, int], ...]:
    """Returns (first token, end) of the parts of a prompt whose tokens attend to each other, also to later ones.

    Args:
        runs: each run of placeholder tokens is one, except those of audio.
        prompt: the whole prompt is the only one.
    """
    if prompt:
        return ((0, num_prompt_tokens),)
    if not runs:
        return ()
    seen = (span for span in spans if span.kind is not MediaKind.AUDIO)
    return tuple((span.start + offset, span.start + offset + length) for span in seen for offset, length in span.runs)


def _check_runs(span: MediaSpan) -> None:
    end = 0
    for offset, length in span.runs:
        if offset < end or length < 1:
            raise EngineError(EngineErrorCode.INTERNAL, f"media span: runs {span.runs} are empty or overlap")
        end = offset + length
    if end > span.num_tokens:
        raise EngineError(EngineErrorCode.INTERNAL, f"media span: runs {span.runs} exceed its {span.num_tokens} tokens")
