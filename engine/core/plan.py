"""One engine step as a value: the scheduler decides it and the runner executes it. Plain data, no torch.

A step has no prefill or decode phase. Each chunk holds the next tokens of one sequence; a decode is a chunk of one
token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from glimpse.engine.protocol.media import MediaContent, MediaSpan
from glimpse.engine.protocol.messages import TokenLogprobs
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.media.kind import MediaKind

PENDING_TOKEN_ID = -1
"""Stands in a plan for the token id that the previous plan samples for the same sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """What the runner must know about a sequence before its first chunk.

    Sent once, also if the sequence is preempted later. Sent again after a failed step, which restarts the sequence,
    and when its grammar is triggered.
    """

    sequence_id: int
    prompt_token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""
    sampling: SamplingParams
    generated_token_ids: tuple[int, ...] = ()
    """The answer so far, if the sequence is restarted."""
    grammar_start: int | None = None
    """Index in the answer of the first token that a grammar with a trigger constrains. None: it was not triggered."""
    pooling: PoolingParams | None = None
    """Pool the prompt's hidden states into an embedding. Its chunks do not sample."""
    adapter: bytes = b""
    """Digest of the adapter that computes its tokens; empty: none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """A medium to encode in this step. The runner keeps its output until a plan evicts the key."""

    key: bytes
    kind: MediaKind
    grid: tuple[int, ...]
    """See `MediaSpan`."""
    content: MediaContent | None
    """None if another rank encodes the medium and sends its output to this one."""
    adapter: bytes = b""
    """Digest of the adapter that changes the encoder; empty: none does."""

    @property
    def data(self) -> memoryview:
        """Content of a medium that this rank's encoder encodes."""
        assert isinstance(self.content, memoryview)
        return self.content


NO_STATE = -1
"""Stands for a state of zeros."""


class ChunkStates(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The states of a chunk, for models with layers that keep them: those of all such layers have one id."""

    reads: int
    """State of the tokens before the chunk. NO_STATE: there are none."""
    writes: tuple[tuple[int, int], ...]
    """(number of tokens, id): after the chunk's first tokens their state is written there, after the next ones theirs,
    until all are computed. So all but the last are snapshots."""


class SequenceChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one sequence that this step computes."""

    sequence_id: int
    start: int
    """Index in the sequence of the first of `token_ids`. The KV of all tokens before it is in the cache."""
    token_ids: tuple[int, ...]
    """The last one may be PENDING_TOKEN_ID."""
    block_table: Sequence[int]
    """Ids of the blocks for tokens 0 to start + len(token_ids) - 1, in order. There may be more, and more may be
    appended later, to the same list; it never changes otherwise."""
    sliding_table: Sequence[int] | None = None
    """Ids of the blocks of sliding layers, as in `block_table`; those before the window may be any. None: they are
    parts of the other blocks."""
    samples: bool
    """The chunk reaches the end of the sequence, and a token is sampled from the logits of its last token."""
    num_draft_tokens: int = 0
    """How many of `token_ids`, at the end, are draft tokens. Each is accepted if it equals the sampled token and all
    before it were accepted. The KV of the others is overwritten later."""
    num_proposed_tokens: int = 0
    """Draft tokens that the model proposes for the next step, after the sampled token; only with MTP."""
    states: ChunkStates | None = None
    """None if no layer keeps states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step does, in this order: end, start, evict, encode, compute, sample."""

    ended: tuple[int, ...] = ()
    """Sequences that the runner forgets."""
    started: tuple[SequenceStart, ...] = ()
    evicted: tuple[bytes, ...] = ()
    """Keys of encoder outputs that the runner frees."""
    encode: tuple[Encode, ...] = ()
    chunks: tuple[SequenceChunk, ...] = ()
    """At most one for each sequence."""

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class Sample(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token sampled for one sequence."""

    token_id: int
    logprob: float | None = None
    """Natural log-probability after penalties and biases, before temperature and truncation. None if not requested."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The results of a step."""

    samples: Mapping[int, Sample] = field(default_factory=dict[int, Sample])
    """Sequence id → sampled token, for exactly the chunks that sample. It follows the accepted draft tokens."""
    accepted: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict[int, tuple[Sample, ...]])
    """Sequence id → accepted draft tokens of its chunk, in order. Sequences without any may be missing."""
    proposed: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """Sequence id → draft tokens that may follow the sampled token; see `SequenceChunk.num_proposed_tokens`."""
    failed: Mapping[int, str] = field(default_factory=dict[int, str])
    """Sequence id → why the sequence cannot continue, for the client. Its samples do not count."""
    embeddings: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    """Sequence id → embedding, float32 and little-endian, of exactly the sequences that pool and whose chunk reaches
    the end of the prompt."""
    prompt_logprobs: Mapping[int, list[TokenLogprobs]] = field(default_factory=dict[int, list[TokenLogprobs]])
    """Sequence id → log-probabilities of all tokens of the prompt but the first, of the model's logits as they are, of
    the sequences that ask for them and whose first token this step samples."""
    encode_seconds: float = 0.0
    """How long the encoder took, all media of the step together."""
    mispredicted: frozenset[int] = frozenset()
    """Sequences for which the next plan, launched already, uses another token than the one sampled here. Its results
    for them must be discarded."""


class InFlightStep(Protocol):
    """A launched step."""

    def result(self) -> StepResult:
        """Waits until the step is computed. Called once for each step, in the order of launches."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step whose result is known already."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result
