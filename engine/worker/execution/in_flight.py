"""Steps in flight: what their results wait for, and how tokens are sampled from their logits.

If every sequence's next token depends on its logits alone, tokens are sampled on the device and only they are waited
for. Otherwise the logits are waited for and the host samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from glimpse.engine.core.plan import InFlightStep, StepResult
from glimpse.engine.errors import OutOfDeviceMemoryError
from glimpse.engine.worker.execution.device_sampler import DeviceSample
from glimpse.engine.worker.execution.sampler import SequenceSampler, sample_with_draft_tokens
from glimpse.engine.worker.tensors.transfer import Fence, Stopwatch

_T = TypeVar("_T")


class SamplingRows(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The logits rows of one sequence: one for each draft token, and one more."""

    sequence_id: int
    sampler: SequenceSampler
    draft_token_ids: tuple[int, ...]

    @property
    def needs_host_sampling(self) -> bool:
        """The next token does not depend on the logits alone."""
        return bool(self.draft_token_ids) or self.sampler.needs_host_sampling


@dataclass(frozen=True, slots=True)
class UnsampledStep:
    """A step in which no chunk samples."""

    fence: Fence

    def result(self) -> StepResult:
        self.fence.wait()
        return StepResult()


@dataclass(frozen=True, slots=True)
class DeviceSampledStep:
    """A step whose tokens are sampled on the device."""

    rows: Sequence[SamplingRows]
    sample: DeviceSample

    @torch.inference_mode()
    def result(self) -> StepResult:
        samples, mispredicted = self.sample.result()
        return StepResult(
            samples={own.sequence_id: sample for own, sample in zip(self.rows, samples, strict=True)},
            mispredicted=frozenset(self.rows[row].sequence_id for row in mispredicted),
        )


@dataclass(frozen=True, slots=True)
class HostSampledStep:
    """A step whose tokens are sampled on the host."""

    rows: Sequence[SamplingRows]
    logits: Tensor
    """float32 [rows, vocab_size]: for each sequence one row, and one for each draft token."""

    @torch.inference_mode()
    def result(self) -> StepResult:
        samplers = [own.sampler for own in self.rows]
        samples = sample_with_draft_tokens(self.logits, samplers, [own.draft_token_ids for own in self.rows])
        pairs = list(zip(self.rows, samples, strict=True))
        return StepResult(
            samples={own.sequence_id: sampled[-1] for own, sampled in pairs},
            accepted={own.sequence_id: tuple(sampled[:-1]) for own, sampled in pairs},
            failed={own.sequence_id: why for own in self.rows if (why := own.sampler.failure) is not None},
        )


@dataclass(frozen=True, slots=True)
class ProposingStep:
    """A step after which the model proposes draft tokens."""

    step: InFlightStep
    propose: Callable[[StepResult], Mapping[int, tuple[int, ...]]]

    def result(self) -> StepResult:
        result = self.step.result()
        return replace(result, proposed=self.propose(result))


@dataclass(frozen=True, slots=True)
class EncodingStep:
    """A step that runs the encoder."""

    step: InFlightStep
    stopwatch: Stopwatch

    def result(self) -> StepResult:
        return replace(self.step.result(), encode_seconds=self.stopwatch.seconds())


@dataclass(frozen=True, slots=True)
class MemoryGuardedStep:
    """A step that raises OutOfDeviceMemoryError for torch's error."""

    step: InFlightStep

    def result(self) -> StepResult:
        return guard_memory(self.step.result)


def guard_memory(compute: Callable[[], _T]) -> _T:
    """Calls a function.

    Raises:
        OutOfDeviceMemoryError: the device is out of memory. What the attempt had allocated is freed.
    """
    try:
        return compute()
    except torch.OutOfMemoryError as error:
        reason = str(error)
    # Outside the handler: the frames that failed, and their tensors, are gone now.
    torch.cuda.empty_cache()
    raise OutOfDeviceMemoryError(reason)
