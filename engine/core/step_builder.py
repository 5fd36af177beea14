"""The plan of a step while the scheduler builds it, and the finished plan with the sequences behind it."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from itertools import compress

from glimpse.engine.core.plan import SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.core.prefill_budget import StepWork
from glimpse.engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """A step's plan and the sequences that it was made from."""

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    """The sequence of each of `plan.chunks`."""
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache, of sequences first admitted in this step."""
    num_preemptions: int
    work: StepWork
    num_admitted_tokens: int = 0
    """All prompt tokens of these sequences."""
    leaves_out_decodes: bool = False
    """Sequences that could decode do not, because several clients share the step."""

    @property
    def num_draft_tokens(self) -> int:
        return sum(chunk.num_draft_tokens for chunk in self.plan.chunks)

    def keeping(self, wanted: Many[bool]) -> "ScheduledStep":
        """Returns the step without the sequences and chunks that are not wanted."""
        chunks = tuple(compress(self.plan.chunks, wanted))
        return replace(self, plan=replace(self.plan, chunks=chunks), sequences=tuple(compress(self.sequences, wanted)))


EMPTY_STEP = ScheduledStep(
    plan=StepPlan(),
    sequences=(),
    num_cached_tokens=0,
    num_preemptions=0,
    work=StepWork(num_decodes=0, num_prompt_tokens=0, num_media_tokens=0),
)
"""There is nothing to do."""


@dataclass(slots=True, kw_only=True)
class StepBuilder:
    """A step being planned: what is planned so far, and how much is left of each budget."""

    num_tokens_left: int
    """Tokens that the step may still compute."""
    num_decodes_left: int
    """Sequences not planned yet that are to decode. A token is reserved for each."""
    num_prompt_tokens_left: int
    """What is left of the prefill budget. A large medium may overdraw it."""
    media_weight: float
    """Cost of encoding one placeholder token, in prompt tokens."""
    num_draft_tokens: Mapping[Sequence, int]
    """Draft tokens to propose for each sequence that decodes; those without are missing."""
    num_prompt_tokens: int = 0
    sequences: list[Sequence] = field(default_factory=list[Sequence])
    chunks: list[SequenceChunk] = field(default_factory=list[SequenceChunk])
    started: list[SequenceStart] = field(default_factory=list[SequenceStart])
    hashes_in_progress: set[bytes] = field(default_factory=set[bytes])
    """Hashes of the blocks that the step fills."""
    skipped: list[Sequence] = field(default_factory=list[Sequence])
    """Waiting sequences that have a place but are admitted in a later step."""
    num_reserved_blocks: int = 0
    """Free blocks that running sequences leave to waiting ones."""
    left_out: set[Sequence] = field(default_factory=set[Sequence])
    """Running sequences that could decode, but whose turn comes in a later step."""
    has_only_newcomers: bool = False
    """Prompts of other clients are computed in a later step."""
    num_cached_tokens: int = 0
    num_admitted_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_free_tokens(self) -> int:
        """Prompt tokens that the step can still take."""
        return max(0, min(self.num_tokens_left - self.num_decodes_left, self.num_prompt_tokens_left))

    def add(self, sequence: Sequence, end: int, draft_token_ids: tuple[int, ...]) -> None:
        """Adds the uncomputed tokens of a sequence before `end`, then draft tokens. It has the blocks for both."""
        if not sequence.started:
            sequence.started = True
            self.started.append(_start_of(sequence))
        start = sequence.num_computed_tokens
        num_tokens = end - start + len(draft_token_ids)
        is_single = num_tokens == 1  # a decode
        self.num_tokens_left -= num_tokens
        self.sequences.append(sequence)
        self.chunks.append(
            SequenceChunk(
                sequence_id=sequence.sequence_id,
                start=start,
                token_ids=(sequence.token_ids[start],)
                if is_single
                else (*sequence.token_ids[start:end], *draft_token_ids),
                block_table=sequence.block_table,
                samples=end == len(sequence.token_ids) and sequence.pooling is None,
                num_draft_tokens=len(draft_token_ids),
            )
        )


def _start_of(sequence: Sequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        prompt_token_ids=tuple(sequence.token_ids[: sequence.num_prompt_tokens]),
        spans=sequence.spans,
        sampling=sequence.sampling,
        pooling=sequence.pooling,
        generated_token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens : sequence.num_known_tokens]),
        grammar_start=sequence.grammar_start,
    )
