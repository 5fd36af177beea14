"""Batch invariance: a sequence's answer does not depend on batches, chunks or cached prefixes.

On the native kernels the logits are bit-identical. In torch the last bit of a product may depend on the shape of the
batch: there the logits agree within rounding, and the tokens are the same.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.worker.native.library import Level
from tests.engine.harness import Harness, ScriptedSequence, make_prompt
from tests.engine.levels import OUTER_LEVELS

BLOCK_SIZE = 32
NUM_TOKENS = 6
PROMPTS = [
    make_prompt(1, 23),
    make_prompt(2, 5, (112, 84), 9),
    make_prompt(3, 40, (28, 28), 1, (56, 196), 1, (140, 28), 4),
    make_prompt(4, 70, (84, 84), 1),
    make_prompt(5, 130),
]
BACKENDS = [(None, "none"), *((level, quantization) for level in OUTER_LEVELS for quantization in ("none", "int8"))]
batch_members = st.lists(st.tuples(st.integers(0, len(PROMPTS) - 1), st.booleans()), min_size=1, max_size=7)
"""For each sequence: the index of its prompt, and whether it starts from cached blocks."""


class SharedBatch:
    """Sequences that share a harness, and the same prompts computed alone."""

    def __init__(self, harness: Harness, *, exactly: bool) -> None:
        self._harness, self._exactly = harness, exactly
        self._alone = [harness.answer(harness.begin(prompt), NUM_TOKENS) for prompt in PROMPTS]

    def begin(self, index: int, *, cached: bool) -> ScriptedSequence:
        num_cached = (len(PROMPTS[index].token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE if cached else 0
        return self._harness.begin(PROMPTS[index], cached=self._alone[index], num_cached=num_cached)

    def step(self, work: list[tuple[ScriptedSequence, int]]) -> None:
        self._harness.step(*work)

    def end(self, index: int, sequence: ScriptedSequence) -> None:
        alone = self._alone[index]
        assert sequence.answer[:NUM_TOKENS] == alone.answer
        logits, expected = torch.stack(sequence.logits[:NUM_TOKENS]), torch.stack(alone.logits)
        if self._exactly:
            assert torch.equal(logits, expected)
        else:
            assert (logits - expected).abs().max() < 1e-4
        self._harness.end(sequence)


@pytest.fixture(scope="module", params=BACKENDS, ids=str)
def shared_batch(tiny_checkpoint: Path, request: pytest.FixtureRequest) -> SharedBatch:
    level: Level | None
    level, quantization = request.param
    dtype = torch.float32 if level is None else torch.bfloat16
    harness = Harness(tiny_checkpoint, dtype, level=level, quantization=quantization, block_size=BLOCK_SIZE)
    return SharedBatch(harness, exactly=level is not None)


@settings(max_examples=12)
@given(members=batch_members, data=st.data())
def test_answers_do_not_depend_on_the_batch(
    shared_batch: SharedBatch, members: list[tuple[int, bool]], data: st.DataObject
):
    sequences = [(index, shared_batch.begin(index, cached=cached)) for index, cached in members]
    while unfinished := [sequence for _, sequence in sequences if len(sequence.answer) < NUM_TOKENS]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        work: list[tuple[ScriptedSequence, int]] = []
        for sequence in chosen:
            left = len(sequence.token_ids) - sequence.num_computed
            work.append((sequence, left if left == 1 else data.draw(st.integers(left // 4 + 1, left))))
        shared_batch.step(work)
    for index, sequence in sequences:
        shared_batch.end(index, sequence)
