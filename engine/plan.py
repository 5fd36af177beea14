"""One engine step as a value: what the scheduler decides and the runner carries out. Plain data, no torch.

A step has no prefill and no decode phase: each chunk names the next tokens of one sequence, of which a decode has one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec

from glimpse.engine.sampling_params import SamplingParams
from glimpse.media.kind import MediaKind

PENDING_TOKEN_ID = -1
"""Stands for a token id that the plan before samples, for this very sequence, and that nobody knows yet."""


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoder made of a medium elsewhere. It takes the place of what ours would make of its pixels."""

    dtype: Literal["float32", "float16", "bfloat16"]
    data: memoryview
    """[placeholder tokens, hidden_size], row-major, little-endian; every value is finite, also in any other dtype."""

    @property
    def num_values(self) -> int:
        return self.data.nbytes // (4 if self.dtype == "float32" else 2)


MediaContent: TypeAlias = memoryview | Embeddings
"""What an encoder output is made from.

- Image or video: pixels, uint8 [frames, grid_h * patch_size, grid_w * patch_size, 3], row-major; an image has 1 frame.
- Audio: features, float32 [mel bins, frames], row-major.
- `Embeddings`: the encoder output itself, which is only copied.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """The placeholder tokens of one medium in a prompt."""

    kind: MediaKind
    start: int
    """Index in the prompt of the first placeholder token."""
    num_tokens: int
    """Number of placeholder tokens, which are consecutive."""
    key: bytes
    """256-bit hash of the content and of how it was processed. Equal keys mean equal encoder outputs."""
    grid_thw: tuple[int, int, int]
    """Patches in time, height and width, before merging. For audio: 1, mel bins, frames."""
    mrope_time_interval: float = 1.0
    """Distance in M-RoPE positions between two temporal patches of a video. The products are rounded down."""

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStart:
    """What the runner must know of a sequence before its first chunk.

    Said once, also of one preempted later; and once more after a step failed in which it was: that begins it anew.
    """

    sequence_id: int
    prompt_token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...]
    """In the order of `start`."""
    sampling: SamplingParams
    generated_token_ids: tuple[int, ...] = ()
    """What it has said so far, where it is begun anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """One medium for the encoder in this step. Its output stays in the runner until the plan evicts its key."""

    key: bytes
    kind: MediaKind
    grid_thw: tuple[int, int, int]
    content: MediaContent | None
    """None if another rank encodes the medium and sends its output to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceChunk:
    """The tokens of one sequence that this step computes."""

    sequence_id: int
    start: int
    """Index in the sequence of the first of `token_ids`; the KV of all tokens before it is in the cache."""
    token_ids: tuple[int, ...]
    """The last may be PENDING_TOKEN_ID."""
    block_table: tuple[int, ...]
    """Ids of the blocks that hold tokens 0 … start + len(token_ids) - 1, in order, and maybe more."""
    samples: bool
    """The logits of the last token are sampled: the chunk reaches the end of the sequence."""
    num_draft_tokens: int = 0
    """How many of the last of `token_ids` are guesses at what the sequence says next. Sampling goes through them in
    order as long as it says the same; what was computed for the others is overwritten later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step does, in this order: forget, begin, evict, encode, compute, sample."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The token chosen for one sequence."""

    token_id: int
    logprob: float | None = None
    """Natural log-probability after penalties and biases, before temperature and truncation; None if not asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most likely tokens, most likely first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What came out of a step."""

    samples: Mapping[int, Sample] = field(default_factory=dict[int, Sample])
    """Sequence id → its token, for exactly the chunks that sample; after guesses that came true, the one beyond."""
    accepted: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict[int, tuple[Sample, ...]])
    """Sequence id → the guesses of its chunk that came true, from the first; those without any may be missing."""
    failed: Mapping[int, str] = field(default_factory=dict[int, str])
    """Sequence id → why it cannot go on, in words for the client; its samples are void."""
    mispredicted: frozenset[int] = frozenset()
    """Sequences for which a plan launched meanwhile took another token than this one: what it made of them is void."""


class InFlightStep(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Waits until the step is computed. Asked for once, in the order in which steps were launched."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that need not be waited for."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result
