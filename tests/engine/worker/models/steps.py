"""What every model must do: answer as its reference for any division into steps, batches and cached prefixes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias

import torch

from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.native.library import Level
from tests.engine.harness import BLOCK_SIZE, Harness, Prompt, ScriptedSequence
from tests.engine.levels import assert_stays_near_float32, at_outer_levels, needs_kernels
from tests.oracles.answers import Answer

Kernel: TypeAlias = tuple[torch.dtype, Quantization, float]
"""A type, a quantization of weights, and the tolerance of `assert_stays_near_float32`."""
PLAIN_KERNELS: tuple[Kernel, ...] = ((torch.float32, "none", 1e-5), (torch.bfloat16, "none", 0.1))


def assert_same(sequence: ScriptedSequence, expected: Answer) -> None:
    """Fails if a sequence has other tokens or, beyond rounding, other logits than the reference."""
    assert sequence.answer == expected.token_ids
    assert (torch.stack(sequence.logits) - expected.logits).abs().max() <= 1e-4


def agreement(reference: Callable[..., Answer], *parts: str) -> Callable[[ScriptedSequence, Path], None]:
    """Returns a function that fails if a sequence is not what the reference answers.

    Args:
        reference: takes a checkpoint, the tokens of a prompt, these `parts` of the `Prompt`, and a number of tokens.
    """

    def assert_agrees(sequence: ScriptedSequence, path: Path) -> None:
        given = (getattr(sequence.prompt, part) for part in parts)
        assert_same(sequence, reference(path, sequence.prompt.token_ids, *given, len(sequence.answer)))

    return assert_agrees


class Steps:
    """Tests of the prompts of a file, which derives `TestSteps`. The prompts are its `PROMPTS` or its fixture."""

    agrees: ClassVar[Callable[[ScriptedSequence, Path], None]]
    """Fails if a sequence is not what the reference answers."""
    names: ClassVar[Sequence[str]] = ()
    """Names of the prompts. Default: those in `PROMPTS`."""
    divided: ClassVar[str]
    """Name of the prompt that is computed in chunks."""
    sizes: ClassVar[Sequence[int | Sequence[int]]] = (1, 5, 13)
    """Sizes of the chunks in tokens: one for all, or one for each."""
    cached: ClassVar[Sequence[str]]
    """Names of the prompts that are answered again from the first blocks of their prefixes."""
    blocks: ClassVar[Sequence[int]] = (1, 2)
    """Numbers of these blocks, the last of which end within a medium."""
    num_tokens: ClassVar[int] = 8

    def test_alone(self, harness: Harness, checkpoint: Path, prompts: Mapping[str, Prompt], name: str) -> None:
        type(self).agrees(harness.answer(harness.begin(prompts[name]), self.num_tokens), checkpoint)

    def test_in_chunks(
        self, harness: Harness, checkpoint: Path, prompts: Mapping[str, Prompt], size: int | Sequence[int]
    ) -> None:
        sequence = harness.begin(prompts[self.divided])
        chunks = [size] * ((len(sequence.prompt.token_ids) - 1) // size) if isinstance(size, int) else size
        type(self).agrees(harness.answer(sequence, self.num_tokens, chunks=chunks), checkpoint)

    def test_batched_with_others(self, harness: Harness, checkpoint: Path, prompts: Mapping[str, Prompt]) -> None:
        sequences = [harness.begin(prompt) for prompt in prompts.values()]
        harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in sequences))
        for _ in range(self.num_tokens - 1):
            harness.step(*((sequence, 1) for sequence in sequences))
        for sequence in sequences:
            type(self).agrees(sequence, checkpoint)

    def test_cached_prefix(
        self, harness: Harness, checkpoint: Path, prompts: Mapping[str, Prompt], num_blocks: int
    ) -> None:
        for prompt in map(prompts.__getitem__, self.cached):
            first = harness.answer(harness.begin(prompt, snapshots=[num_blocks * BLOCK_SIZE]), 2)
            second = harness.begin(prompt, cached=first, num_cached=num_blocks * BLOCK_SIZE)
            type(self).agrees(harness.answer(second, self.num_tokens), checkpoint)


class NativeSteps(Steps):
    """Tests that have the native kernels answer too, in several types."""

    kernels: ClassVar[Sequence[Kernel]] = PLAIN_KERNELS

    @needs_kernels
    def test_native_kernels_stay_near_float32(
        self, checkpoint: Path, prompts: Mapping[str, Prompt], kernel: Kernel
    ) -> None:
        dtype, quantization, tolerance = kernel
        assert_stays_near_float32(checkpoint, prompts.values(), dtype, quantization=quantization, tolerance=tolerance)


class AccurateSteps(Steps):
    """Tests that the native kernels are as accurate as torch."""

    accurate: ClassVar[str]
    """Name of the prompt whose first answered token counts."""
    block_sizes: ClassVar[Sequence[int]] = (BLOCK_SIZE, 32)

    @needs_kernels
    @at_outer_levels
    def test_native_kernels_are_as_accurate_as_torch(
        self, checkpoint: Path, prompts: Mapping[str, Prompt], level: Level, block_size: int
    ) -> None:
        exact, plain = Harness(checkpoint), Harness(checkpoint, torch.bfloat16)
        native = Harness(checkpoint, torch.bfloat16, level=level, block_size=block_size)
        prompt = prompts[self.accurate]
        expected, near, found = (each.answer(each.begin(prompt), 1).logits[0] for each in (exact, plain, native))
        assert (found - expected).std() <= 1.5 * (near - expected).std()


class LevelSteps(Steps):
    """Tests that have the native kernels of each level answer too."""

    @needs_kernels
    @at_outer_levels
    def test_native_kernels_agree(
        self, harness: Harness, checkpoint: Path, prompts: Mapping[str, Prompt], level: Level
    ) -> None:
        native, prompt = Harness(checkpoint, level=level), prompts[self.divided]
        logits = [torch.stack(each.answer(each.begin(prompt), 3).logits) for each in (native, harness)]
        assert (logits[0] - logits[1]).abs().max() <= 1e-4
