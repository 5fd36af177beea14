"""The states of models with layers that keep one for each sequence: who writes which, and which are snapshots.

A state is an id, and stands for the states of all such layers. Unlike a KV block it is overwritten by each step, so a
prefix can be shared only where a snapshot was kept: at the end of a block. Snapshots cost no copy: a sequence leaves
its state behind and goes on in another one. They are kept

- at the end of a prompt, for the same prompt and for those that continue it;
- after the last medium of a prompt, for other questions about it;
- where a prompt leaves an earlier one whose KV is there, for the next that does;
- at the last end of a block in an answer, for the next turn.

Draft tokens write a state each, so the one after the accepted tokens is there, whichever these are.

Where states run short, snapshots are given up, the least recently used first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from glimpse.engine.core.memory.block_pool import BlockPool
from glimpse.engine.core.memory.prefix_cache import PrefixCache
from glimpse.engine.core.plan import NO_STATE, ChunkStates
from glimpse.engine.core.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class _Holding:
    """What a running sequence holds."""

    state: int
    """The state that it writes next."""
    source: int | None
    """A snapshot that it reads next, in place of `state`."""
    planned: dict[int, bytes]
    """Snapshots of its prompt that are to be kept: number of blocks before their ends → hash of the last of these."""
    left: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """(state, hash) of snapshots that the step in flight writes."""
    at_end: bytes | None = None
    """Hash of the snapshot that `state` becomes once the sequence leaves it. None: it is not worth one."""
    of_answer: bytes | None = None
    """Hash of the last snapshot of its answer."""
    of_drafts: list[int] = field(default_factory=list[int])
    """The states after each draft token of the step in flight."""


class StateTable:
    """The states of the running sequences, and snapshots, in one pool."""

    def __init__(self, *, block_size: int, prefix_cache: PrefixCache, pool: BlockPool) -> None:
        """`pool`: of states, in which `prefix_cache` looks for snapshots."""
        self._block_size = block_size
        self._prefix_cache = prefix_cache
        self._pool = pool
        self._held: dict[Sequence, _Holding] = {}

    @property
    def num_held(self) -> int:
        """States that are neither free nor mere snapshots."""
        return self._pool.num_used

    @property
    def has_free(self) -> bool:
        """A state for one more sequence is free, or a snapshot that can be given up."""
        return self._pool.num_free > 0

    def num_spare(self, sequence: Sequence) -> int:
        """Returns how many states draft tokens of a running sequence may take. It may need one for itself, and one is
        left to a sequence that waits."""
        return max(self._pool.num_free - 1 - (self._held[sequence].at_end is not None), 0)

    def awaits_snapshot(self, sequence: Sequence, num_blocks: int) -> bool:
        """Whether a running sequence will keep a snapshot that a waiting one can begin with.

        Args:
            num_blocks: The blocks with which it could begin now.
        """
        return any(
            index > num_blocks and self._prefix_cache.next_hash(sequence, index - 1) == block_hash
            for running, held in self._held.items()
            for index, block_hash in self._expected(running, held)
        )

    def begin(self, sequence: Sequence, num_blocks: int) -> None:
        """Gives a sequence a state. It begins with the snapshot after its first `num_blocks` blocks, if there are any.

        Raises:
            KeyError: no state is free.
        """
        source = self._prefix_cache.find_snapshot(sequence, num_blocks) if num_blocks else None
        if source is not None:
            self._pool.retain(source)
        if source is not None and not self._pool.num_free:
            self._pool.evict(source)  # it is the last one: the sequence goes on in it
            state, source = source, None
        else:
            state = self._pool.allocate()
        planned = self._planned(sequence, num_blocks)
        self._held[sequence] = _Holding(state=state, source=source, planned=planned)

    def plan(self, sequence: Sequence, start: int, end: int, num_draft_tokens: int = 0) -> ChunkStates:
        """Returns the states of the tokens from `start` to before `end`, all of which the next step computes.

        Args:
            num_draft_tokens: The draft tokens after these, `num_spare` at most.
        """
        held = self._held[sequence]
        if held.at_end is not None:
            self._leave(held, held.at_end, is_answer=start > sequence.request.num_prompt_tokens)
        reads = held.state if held.source is None else held.source
        writes: list[tuple[int, int]] = []
        first = start
        for index in sorted(held.planned):
            place = index * self._block_size
            if first < place < end and self._pool.num_free:
                writes.append((place - first, held.state))
                held.left.append((held.state, held.planned[index]))
                held.state, first = self._pool.allocate(), place
        writes.append((end - first, held.state))
        held.of_drafts = [self._pool.allocate() for _ in range(num_draft_tokens)]
        writes += [(1, state) for state in held.of_drafts]
        return ChunkStates(reads=reads if start else NO_STATE, writes=tuple(writes))

    def complete(self, sequence: Sequence, num_accepted_tokens: int = 0) -> None:
        """Makes the snapshots within a computed chunk findable, and goes on after its accepted draft tokens."""
        held, end = self._held[sequence], sequence.num_computed_tokens
        for state, block_hash in held.left:
            self._pool.register(state, block_hash)
            self._pool.release(state)
        if held.source is not None:
            self._pool.release(held.source)
        held.left, held.source = [], None
        if held.of_drafts:
            self._accept(sequence, held, num_accepted_tokens)
        index, offset = divmod(end, self._block_size)
        if not offset and (index in held.planned or end > sequence.request.num_prompt_tokens):
            held.at_end = next(iter(self._prefix_cache.hashes(sequence, end - self._block_size, end)), None)
        held.planned = {place: block_hash for place, block_hash in held.planned.items() if place > index}

    def evict(self, chunks: Iterable[ChunkStates | None]) -> None:
        """Makes what was written for these chunks no longer found."""
        for states in chunks:
            for _, state in () if states is None else states.writes:
                self._pool.evict(state)

    def release(self, sequence: Sequence) -> None:
        """Frees what a sequence holds, if anything. Its snapshots are still found, and its state is if it is one."""
        if (held := self._held.pop(sequence, None)) is None:
            return
        if held.at_end is not None:
            self._pool.register(held.state, held.at_end)
        for state in (held.state, held.source, *held.of_drafts, *(state for state, _ in held.left)):
            if state is not None:
                self._pool.release(state)

    def _leave(self, held: _Holding, block_hash: bytes, *, is_answer: bool) -> None:
        """Goes on in another state, unless there is none, or there is such a snapshot already."""
        held.at_end = None
        if is_answer:
            self._replace_snapshot(held, block_hash)
        if self._pool.num_free and self._pool.find(block_hash) is None:
            self._pool.register(held.state, block_hash)
            held.source, held.state = held.state, self._pool.allocate()

    def _accept(self, sequence: Sequence, held: _Holding, num_accepted_tokens: int) -> None:
        """Keeps the state after the accepted draft tokens, and a snapshot if a block has ended before."""
        states, held.of_drafts = [held.state, *held.of_drafts], []
        held.state = states.pop(num_accepted_tokens)
        end = sequence.num_computed_tokens
        place = end - end % self._block_size
        first = end - num_accepted_tokens
        if first <= place < end:
            for block_hash in self._prefix_cache.hashes(sequence, place - self._block_size, place):
                self._replace_snapshot(held, block_hash)
                self._pool.register(states[place - first], block_hash)
        for state in states:
            self._pool.release(state)

    def _replace_snapshot(self, held: _Holding, block_hash: bytes) -> None:
        """Gives up the last snapshot of an answer for a new one."""
        held.of_answer, before = block_hash, held.of_answer
        state = None if before is None else self._pool.find(before)
        if state is not None and self._pool.is_free(state):
            self._pool.discard(state)

    def _expected(self, sequence: Sequence, held: _Holding) -> Iterator[tuple[int, bytes]]:
        """Yields the snapshots that a running sequence will keep: number of blocks before their ends, and hash."""
        yield from held.planned.items()
        if held.at_end is not None:
            yield sequence.num_computed_tokens // self._block_size, held.at_end

    def _planned(self, sequence: Sequence, num_blocks: int) -> dict[int, bytes]:
        """Returns which snapshots a sequence keeps while its prompt is computed, beyond its first blocks."""
        request = sequence.request
        ends = [request.num_prompt_tokens - 1, *(span.end for span in request.spans[-1:])]
        indices = {end // self._block_size for end in ends} | {self._prefix_cache.num_known_blocks(sequence)}
        planned: dict[int, bytes] = {}
        for index in indices:
            block_hash = self._prefix_cache.next_hash(sequence, index - 1) if index > num_blocks else None
            if block_hash is not None and request.part_around(index * self._block_size) is None:
                planned[index] = block_hash
        return planned
