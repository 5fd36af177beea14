"""A request inside the engine: its tokens, how many of them are computed, and whether it waits or runs.

One counter catches up with another: `num_computed_tokens` with `num_tokens`.

    0                             num_prompt_tokens        num_tokens         max_num_tokens
    [ prompt                     )[ answer                )[ may follow      )
    [ in blocks, as KV           ........)[ to be computed)
    0                         num_computed_tokens          num_tokens

Prefill, a chunk of it, a prefix found in the cache, decode and the return from a preemption differ in nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from glimpse.engine.core.fairness.flow import Flow
from glimpse.engine.core.plan import PENDING_TOKEN_ID, SequenceStart
from glimpse.engine.core.request import Request
from glimpse.engine.protocol.messages import RequestStats


class SequenceStatus(Enum):
    """Where a sequence is between its arrival and its end."""

    NEW = "new"
    """The scheduler does not have it: its grammar is being compiled."""
    WAITING = "waiting"
    RUNNING = "running"
    """Holds blocks."""
    PREEMPTED = "preempted"
    """Waits again, without blocks: its tokens are computed again."""
    ENDED = "ended"
    """Results that arrive later are discarded."""


NEW, WAITING, RUNNING, PREEMPTED, ENDED = SequenceStatus
_TRANSITIONS = {
    NEW: {WAITING, ENDED},
    WAITING: {RUNNING, ENDED},
    RUNNING: {PREEMPTED, ENDED},
    PREEMPTED: {RUNNING, ENDED},
    ENDED: set[SequenceStatus](),
}


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
    """One prompt and its answer so far. What others know of it is in tables of their own."""

    sequence_id: int
    """Counts up in the order of arrival."""
    request: Request
    status: SequenceStatus = field(default=NEW, init=False)
    flow: Flow = field(default_factory=Flow)
    """The counters of its request and client. Set by the scheduler."""
    token_ids: list[int] = field(init=False)
    """The prompt, then the generated tokens. The last may be PENDING_TOKEN_ID: it is being computed."""
    num_computed_tokens: int = 0
    """Tokens, from the first, whose KV is in the sequence's blocks."""
    num_served_tokens: int = 0
    """Tokens that count as service of its client. Those computed again after a preemption do not."""
    num_protected_tokens: int = 0
    """Number of tokens before which it is not displaced."""
    trigger: TriggerWatcher | None = None
    """Waits for the trigger of the grammar. None: there is none to wait for."""
    grammar_start: int | None = None
    """Index in the answer of the first token that a grammar with a trigger constrains. None: it was not triggered."""
    end_token_ids: frozenset[int] = field(init=False)
    """Tokens that end the answer."""
    arrived: float = 0.0
    """Time of arrival, in seconds of the core's clock."""
    was_planned: bool = False
    """A step with some of its tokens was planned."""
    stats: RequestStats = field(default_factory=RequestStats)
    """What was measured; `current_stats` adds what is counted elsewhere."""
    encoded_keys: set[bytes] = field(default_factory=set[bytes])
    """Keys of the media that were encoded for this sequence. The others were cached, as encoder outputs or as KV."""

    def __post_init__(self) -> None:
        self.token_ids = [*self.request.prompt_token_ids]
        self.end_token_ids = self.request.end_token_ids

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) - (self.token_ids[-1] == PENDING_TOKEN_ID)

    @property
    def for_runner(self) -> SequenceStart:
        """What the runner must know of it."""
        request = self.request
        return SequenceStart(
            sequence_id=self.sequence_id,
            prompt_token_ids=request.prompt_token_ids,
            spans=request.spans,
            sampling=request.sampling,
            pooling=request.pooling,
            generated_token_ids=tuple(self.token_ids[request.num_prompt_tokens : self.num_known_tokens]),
            grammar_start=self.grammar_start,
            adapter=request.adapter,
        )

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.request.num_prompt_tokens

    @property
    def current_stats(self) -> RequestStats:
        """The statistics of its request up to now."""
        return msgspec.structs.replace(
            self.stats,
            num_computed_prompt_tokens=min(self.num_served_tokens, self.request.num_prompt_tokens),
            encoded_media=self._encoded_media(),
        )

    def _encoded_media(self) -> list[int]:
        """Indices of the media that were encoded for this sequence. Of equal ones, the first that was not cached."""
        first: dict[bytes, tuple[bool, int]] = {}
        for index, span in enumerate(self.request.spans):
            if span.key in self.encoded_keys:
                place = (span.end <= self.stats.num_cached_tokens, index)
                first[span.key] = min(first.get(span.key, place), place)
        return sorted(index for _, index in first.values())

    @property
    def is_complete(self) -> bool:
        """Whether it has all the tokens that it may have, even if the last is still pending."""
        return len(self.token_ids) >= self.request.max_num_tokens

    @property
    def needs_host_sampling(self) -> bool:
        """The next token does not depend on the model's logits alone."""
        return self.request.needs_host_sampling or self.grammar_start is not None

    @property
    def is_constrained(self) -> bool:
        """A grammar constrains the next token."""
        grammar = self.request.sampling.grammar
        return grammar is not None and (grammar.trigger is None or self.grammar_start is not None)

    @property
    def decodes(self) -> bool:
        """Whether it needs a single token computed, and a token follows."""
        num_tokens, request = len(self.token_ids), self.request  # written out: called for each sequence in each step
        return (
            num_tokens - self.num_computed_tokens == 1
            and num_tokens < request.max_num_tokens
            and request.pooling is None
        )

    @property
    def priority_key(self) -> tuple[int, int]:
        """Sorts sequences: the smallest is served first and preempted last."""
        return (self.request.priority, self.sequence_id)

    def wait(self, flow: Flow) -> None:
        """Begins to wait, as one of a flow."""
        self._become(WAITING)
        self.flow = flow

    def run(self, num_cached_tokens: int) -> None:
        """Begins to run, or runs again, with the KV of its first tokens."""
        if self.status is WAITING:
            self.stats = msgspec.structs.replace(self.stats, num_cached_tokens=num_cached_tokens)
        self._become(RUNNING)
        self.num_computed_tokens = num_cached_tokens
        self.num_served_tokens = max(self.num_served_tokens, num_cached_tokens)

    def preempt(self, *, num_protected_tokens: int = 0) -> None:
        """Stops to run. With its next `num_protected_tokens` tokens it is not displaced."""
        self._become(PREEMPTED)
        self.num_computed_tokens = 0
        if num_protected_tokens:
            self.num_protected_tokens = len(self.token_ids) + num_protected_tokens

    def end(self) -> None:
        """Ends, whether it waits or runs."""
        self._become(ENDED)

    def _become(self, status: SequenceStatus) -> None:
        if status not in _TRANSITIONS[self.status]:
            raise ValueError(f"sequence {self.sequence_id}: {self.status.value} cannot become {status.value}")
        self.status = status

    def mark_scheduled(self, now: float) -> None:
        """Ends the time in the queue if a step with some of its tokens is planned for the first time."""
        if not self.was_planned:
            self.stats = msgspec.structs.replace(self.stats, queue_seconds=now - self.arrived)
            self.was_planned = True

    def mark_first_token(self, now: float) -> None:
        """Ends the time to the first token, or to the embedding."""
        self.stats = msgspec.structs.replace(self.stats, first_token_seconds=now - self.arrived)

    def count_encoding(self, keys: set[bytes], seconds: float) -> None:
        """Counts the time of a step's encoder if it encoded media of this sequence, which waited for all of them."""
        if not keys.isdisjoint(self.encoded_keys):
            self.stats = msgspec.structs.replace(self.stats, encode_seconds=self.stats.encode_seconds + seconds)

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
                # The end of a grammar is an end, even with `ignore_eos`.
                self.end_token_ids |= self.request.eos_token_ids
                return True
        return False
