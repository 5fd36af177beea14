"""Steps under way on a device: what is waited for, and how tokens come out of it. Knows samplers, no model and no plan.

Where all choices depend on the logits alone, they are made on the device and only the tokens are waited for. Otherwise
the logits are, and each choice is made on the host.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from glimpse.engine.errors import OutOfDeviceMemoryError
from glimpse.engine.execution.device_sampler import Choice
from glimpse.engine.execution.sampler import SequenceSampler, sample_with_draft_tokens
from glimpse.engine.plan import InFlightStep, StepResult
from glimpse.engine.tensors.transfer import Fence

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A sequence that wants a token."""

    sequence_id: int
    sampler: SequenceSampler
    guesses: tuple[int, ...]
    """At what it says; each has a row of the logits, after the first."""

    @property
    def is_chosen_from_logits(self) -> bool:
        """What it says depends on its row of the logits alone."""
        return not self.sampler.sampling.adjusts and not self.guesses


@dataclass(frozen=True, slots=True)
class SilentStep:
    """Nothing is sampled."""

    fence: Fence

    def result(self) -> StepResult:
        self.fence.wait()
        return StepResult()


@dataclass(frozen=True, slots=True)
class ChosenStep:
    """Tokens are chosen on the device."""

    asked: Sequence[Asked]
    choice: Choice

    @torch.inference_mode()
    def result(self) -> StepResult:
        samples, mispredicted = self.choice.result()
        return StepResult(
            samples={each.sequence_id: sample for each, sample in zip(self.asked, samples, strict=True)},
            mispredicted=frozenset(self.asked[row].sequence_id for row in mispredicted),
        )


@dataclass(frozen=True, slots=True)
class SampledStep:
    """Tokens are chosen on the host."""

    asked: Sequence[Asked]
    logits: Tensor
    """float32 [rows, vocab_size]: of each sequence one, and one for each guess."""

    @torch.inference_mode()
    def result(self) -> StepResult:
        samplers = [each.sampler for each in self.asked]
        samples = sample_with_draft_tokens(self.logits, samplers, [each.guesses for each in self.asked])
        return StepResult(
            samples={each.sequence_id: own[-1] for each, own in zip(self.asked, samples, strict=True)},
            accepted={each.sequence_id: tuple(own[:-1]) for each, own in zip(self.asked, samples, strict=True)},
            failed={each.sequence_id: why for each in self.asked if (why := each.sampler.failure) is not None},
        )


@dataclass(frozen=True, slots=True)
class WithinMemory:
    """A step that says it in our words if memory did not suffice for it."""

    pending: InFlightStep

    def result(self) -> StepResult:
        return within_memory(self.pending.result)


def within_memory(compute: Callable[[], _T]) -> _T:
    """Computes.

    Raises:
        OutOfDeviceMemoryError: the device's memory did not suffice. What the attempt had taken is given back.
    """
    try:
        return compute()
    except torch.OutOfMemoryError as error:
        reason = str(error)
    # Only here the frames that failed are gone, and their tensors with them.
    torch.cuda.empty_cache()
    raise OutOfDeviceMemoryError(reason)
