"""Decides which media are encoded in a step and which encoder outputs are cached. The outputs are in the runner.

A sequence pins the outputs of exactly the media whose tokens it is computing. Unpinned outputs are evicted when room is
needed, least recently used first. This module tracks keys, sizes and sequence ids; contents are only passed through.
"""

from collections import OrderedDict
from collections.abc import Iterable

from glimpse.engine.core.plan import Encode
from glimpse.engine.core.request import spans_between
from glimpse.engine.core.sequence import Sequence
from glimpse.engine.protocol.media import Embeddings, MediaSpan


class EncoderCache:
    """The encoder outputs that the runner holds once it has executed the plans."""

    def __init__(self, *, bytes_per_row: int, capacity_bytes: int) -> None:
        """`capacity_bytes` must hold any single medium, or a sequence could wait for room forever."""
        self._bytes_per_row = bytes_per_row
        self._capacity_bytes = capacity_bytes
        self._pinned = dict[bytes, set[int]]()  # key → ids of the sequences that pin it
        self._unpinned = OrderedDict[bytes, None]()  # least recently used first
        self._num_bytes = dict[bytes, int]()  # of resident outputs, pinned or not
        self._num_resident_bytes = 0
        self._num_pinned_bytes = 0
        # Decisions for the plan that is being made.
        self._encode = dict[bytes, Encode]()
        self._evicted = list[bytes]()
        self._num_tokens_to_encode = 0
        self._refused = False

    @property
    def num_tokens_to_encode(self) -> int:
        """Placeholder tokens of the media that the plan being made encodes."""
        return self._num_tokens_to_encode

    @property
    def has_evictions(self) -> bool:
        """The next plan tells the runner to free outputs."""
        return bool(self._evicted)

    def holds(self, key: bytes) -> bool:
        """Whether an output is resident."""
        return key in self._num_bytes

    def plan_media(self, sequence: Sequence, start: int, end: int, *, max_more_tokens: int) -> int:
        """Pins the media of the tokens from `start` to `end`, and plans to encode those that are not resident.

        At most `max_more_tokens` tokens more are encoded, but in each step one medium of any size. Once a sequence is
        refused a medium, no later sequence gets a new one in this step: pins can then only be released, and its turn
        comes.

        Returns:
            Where the tokens end whose media are available in this step.
        """
        max_tokens = self._num_tokens_to_encode + max_more_tokens
        for span in spans_between(sequence.request.spans, start, end):
            first_row = next(span.rows_between(start, end), None)
            if first_row is not None and not self._pin(sequence, span, max_tokens):
                return first_row[1]
        return end

    def advance(self, sequence: Sequence, *, first_token: int) -> None:
        """Unpins the media whose last placeholder tokens are among those computed from `first_token` on."""
        computed = sequence.num_computed_tokens
        spans = tuple(spans_between(sequence.request.spans, first_token, computed))
        unfinished = {span.key for span in spans if any(span.rows_between(computed, span.end))}
        self._unpin(sequence, (span.key for span in spans if span.key not in unfinished))

    def release(self, sequence: Sequence) -> None:
        """Removes all pins of a sequence."""
        self._unpin(sequence, (span.key for span in sequence.request.spans))

    def finish_plan(self) -> tuple[tuple[Encode, ...], tuple[bytes, ...]]:
        """Ends the planning of a step and returns what to encode, and the keys to evict before that."""
        for key in [key for key in self._encode if key in self._unpinned]:
            self._drop(key)  # the sequence that needed it was preempted
        decisions = (tuple(self._encode.values()), tuple(self._evicted))
        self._encode = {}
        self._evicted = []
        self._num_tokens_to_encode = 0
        self._refused = False
        return decisions

    def fail(self, *, encoded: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """Takes the decisions of a failed step back: the next plan evicts all its keys. Its pins must be gone.

        If several steps failed, call this for the last one first.
        """
        for key in encoded:
            if key in self._num_bytes:  # else a later step has evicted it, and the next plan will repeat that
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
        """Makes a medium resident if the step may encode it and it fits next to the pinned ones."""
        if span.key in self._num_bytes:
            return True
        content = sequence.request.contents[span.key]
        num_tokens_to_encode = 0 if isinstance(content, Embeddings) else span.num_rows
        if self._encode and self._num_tokens_to_encode + num_tokens_to_encode > max_tokens:
            return False
        num_bytes = span.num_rows * self._bytes_per_row
        if self._num_pinned_bytes + num_bytes > self._capacity_bytes:
            return False
        while self._num_resident_bytes + num_bytes > self._capacity_bytes:
            self._drop(next(iter(self._unpinned)))
        self._unpinned[span.key] = None
        self._num_bytes[span.key] = num_bytes
        self._num_resident_bytes += num_bytes
        self._num_tokens_to_encode += num_tokens_to_encode
        self._encode[span.key] = Encode(
            key=span.key,
            kind=span.kind,
            grid=span.grid,
            content=content,
            adapter=sequence.request.encoder_adapter,
        )
        if not isinstance(content, Embeddings):
            sequence.encoded_keys.add(span.key)
        return True

    def _drop(self, key: bytes) -> None:
        """Evicts an unpinned output, or cancels its encoding if it is only planned."""
        del self._unpinned[key]
        self._num_resident_bytes -= self._num_bytes.pop(key)
        if self._encode.pop(key, None) is None:
            self._evicted.append(key)
