"""Decides which media are encoded in a step and which encoder outputs stay. The outputs themselves live in the runner.

A sequence pins the outputs of the media whose tokens it is computing, and no others; what nobody pins is evicted when
room is wanted, the longest unused first. Knows keys, sizes and sequence ids; pixels it only hands on.
"""

from collections import OrderedDict
from collections.abc import Iterable

from glimpse.engine.plan import Embeddings, Encode, MediaSpan
from glimpse.engine.scheduling.sequence import Sequence, spans_between


class EncoderCache:
    """The runner's encoder outputs, as the plan made them."""

    def __init__(self, *, bytes_per_token: int, capacity_bytes: int) -> None:
        """`capacity_bytes` must hold any one medium, or a sequence could wait for room for ever."""
        self._bytes_per_token = bytes_per_token
        self._capacity_bytes = capacity_bytes
        self._pinned = dict[bytes, set[int]]()  # key → ids of the sequences that pin it
        self._unpinned = OrderedDict[bytes, None]()  # the longest unused first
        self._num_bytes = dict[bytes, int]()  # of the resident keys, pinned or not
        self._num_resident_bytes = 0
        self._num_pinned_bytes = 0
        # What the plan in the making decided so far.
        self._encode = dict[bytes, Encode]()
        self._evicted = list[bytes]()
        self._num_tokens_to_encode = 0
        self._refused = False

    @property
    def num_tokens_to_encode(self) -> int:
        """Tokens of the media that the plan in the making encodes."""
        return self._num_tokens_to_encode

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    @property
    def num_resident_bytes(self) -> int:
        return self._num_resident_bytes

    @property
    def has_evictions(self) -> bool:
        """The runner holds outputs of which the next plan tells it that they are evicted."""
        return bool(self._evicted)

    def reach(self, sequence: Sequence, start: int, end: int, *, max_more_tokens: int) -> int:
        """How far the tokens from `start` towards `end` can be computed in this step.

        The media that they need are pinned, and planned to be encoded where they are not resident: those of no more
        than `max_more_tokens`, but in each step one of any size. Once a sequence was refused a medium, no later one
        begins one in the same step: so pins only go, and its turn comes.
        """
        max_tokens = self._num_tokens_to_encode + max_more_tokens
        for span in spans_between(sequence.spans, start, end):
            if not self._pin(sequence, span, max_tokens):
                return max(start, span.start)
        return end

    def advance(self, sequence: Sequence, *, first_token: int) -> None:
        """Takes away the pins of the media that were completed when the tokens from `first_token` on were computed."""
        computed = sequence.num_computed_tokens
        spans = tuple(spans_between(sequence.spans, first_token, computed))
        unfinished = {span.key for span in spans if span.end > computed}
        self._unpin(sequence, (span.key for span in spans if span.key not in unfinished))

    def release(self, sequence: Sequence) -> None:
        """Takes away all pins of a sequence."""
        self._unpin(sequence, (span.key for span in sequence.spans))

    def decide(self) -> tuple[tuple[Encode, ...], tuple[bytes, ...]]:
        """Ends the planning of a step: what to encode, and the keys to evict before that."""
        for key in [key for key in self._encode if key in self._unpinned]:
            self._drop(key)  # the sequence that wanted it was preempted
        decisions = (tuple(self._encode.values()), tuple(self._evicted))
        self._encode = {}
        self._evicted = []
        self._num_tokens_to_encode = 0
        self._refused = False
        return decisions

    def fail(self, *, encoded: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """Takes back the decisions of a step that failed, whose pins are gone: the next plan evicts all its keys.

        Of several steps that failed the last one's decisions are taken back first.
        """
        for key in encoded:
            if key in self._num_bytes:  # else a later step evicted it, and so will the next plan
                self._drop(key)
        self._evicted += (key for key in evicted if key not in self._evicted)

    def _pin(self, sequence: Sequence, span: MediaSpan, max_tokens: int) -> bool:
        pins = self._pinned.get(span.key)
        if pins is not None and sequence.sequence_id in pins:
            return True
        if self._refused or not self._admit(sequence, span, max_tokens):
            self._refused = True
            return False
        if pins is None:
            pins = self._pinned[span.key] = set()
            del self._unpinned[span.key]
            self._num_pinned_bytes += self._num_bytes[span.key]
        pins.add(sequence.sequence_id)
        return True

    def _unpin(self, sequence: Sequence, keys: Iterable[bytes]) -> None:
        for key in keys:
            pins = self._pinned.get(key)
            if pins is None or sequence.sequence_id not in pins:
                continue
            pins.remove(sequence.sequence_id)
            if not pins:
                del self._pinned[key]
                self._unpinned[key] = None
                self._num_pinned_bytes -= self._num_bytes[key]

    def _admit(self, sequence: Sequence, span: MediaSpan, max_tokens: int) -> bool:
        """Makes a medium resident if it may be encoded in this step and there is room for it beside what is pinned."""
        if span.key in self._num_bytes:
            return True
        content = sequence.contents[span.key]
        num_tokens_to_encode = 0 if isinstance(content, Embeddings) else span.num_tokens
        if self._encode and self._num_tokens_to_encode + num_tokens_to_encode > max_tokens:
            return False
        num_bytes = span.num_tokens * self._bytes_per_token
        if self._num_pinned_bytes + num_bytes > self._capacity_bytes:
            return False
        while self._num_resident_bytes + num_bytes > self._capacity_bytes:
            self._drop(next(iter(self._unpinned)))
        self._unpinned[span.key] = None
        self._num_bytes[span.key] = num_bytes
        self._num_resident_bytes += num_bytes
        self._num_tokens_to_encode += num_tokens_to_encode
        self._encode[span.key] = Encode(key=span.key, kind=span.kind, grid_thw=span.grid_thw, content=content)
        if not isinstance(content, Embeddings):
            sequence.encoded_keys.add(span.key)
        return True

    def _drop(self, key: bytes) -> None:
        """Ends the residence of an unpinned output; one that is not encoded yet just is not."""
        del self._unpinned[key]
        self._num_resident_bytes -= self._num_bytes.pop(key)
        if self._encode.pop(key, None) is None:
            self._evicted.append(key)
