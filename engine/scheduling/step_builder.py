"""A step's plan in the making, and what became of it. Knows what a plan says of a sequence, not which of them run."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import compress

from glimpse.engine.plan import SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.scheduling.prefill_budget import StepWork
from glimpse.engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A step's plan, and what it came from."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    """Those of `plan.chunks`, one by one."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache spared the sequences that start in this step."""
    num_preemptions: int
    work: StepWork

    def keeping(self, wanted: Many[bool]) -> "Scheduled":
        """Without the sequences, and their chunks, of which this is not true: what is computed of them is dropped."""
        chunks = tuple(compress(self.plan.chunks, wanted))
        return replace(self, plan=replace(self.plan, chunks=chunks), sequences=tuple(compress(self.sequences, wanted)))


@dataclass(slots=True, kw_only=True)
class StepBuilder:
    """A plan in the making."""

    num_tokens_left: int
    """What the step may still compute."""
    num_decodes_left: int
    """Running sequences not planned yet that want a single token, which is kept for them."""
    num_prompt_tokens_left: int
    """What the step may still take on beside decodes, so that these keep their pace; may be overdrawn by a medium."""
    media_weight: float
    """What encoding one token of a medium counts for in `num_prompt_tokens_left`."""
    num_draft_tokens_left: int
    """Guesses that the step may still check."""
    num_prompt_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    chunks: list[SequenceChunk] = field(default_factory=list[SequenceChunk])
    started: list[SequenceStart] = field(default_factory=list[SequenceStart])
    computing: set[bytes] = field(default_factory=set[bytes])
    """Names of the blocks that the step completes."""
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_free_tokens(self) -> int:
        """Prompt tokens that the step can still take on."""
        return max(0, min(self.num_tokens_left - self.num_decodes_left, self.num_prompt_tokens_left))

    def add(self, sequence: Sequence, end: int, guesses: tuple[int, ...]) -> None:
        """Plans the uncomputed tokens of a sequence before `end`, and the guesses, for which it has the blocks."""
        if not sequence.started:
            sequence.started = True
            self.started.append(_start_of(sequence))
        start = sequence.num_computed_tokens
        self.num_tokens_left -= end - start + len(guesses)
        self.num_draft_tokens_left -= len(guesses)
        self.sequences.append(sequence)
        self.chunks.append(
            SequenceChunk(
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=(*sequence.token_ids[start:end], *guesses),
                block_table=tuple(sequence.block_table),
                samples=end == sequence.num_tokens,
                num_draft_tokens=len(guesses),
            )
        )


def _start_of(sequence: Sequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        prompt_token_ids=tuple(sequence.token_ids[: sequence.num_prompt_tokens]),
        spans=sequence.spans,
        sampling=sequence.sampling,
        generated_token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens : sequence.num_known_tokens]),
    )
