"""A builder that follows a schedule packs each step as if it had seen no other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import PENDING_TOKEN_ID, SequenceChunk, StepPlan
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.tensors.batch import Batch, PendingTokens, SequenceLayout, SlidingBlocks
from glimpse.engine.worker.tensors.batch_builder import BatchBuilder, make_batch
from tests.engine.checking_runner import EOS, LIMITS, VOCAB_SIZE, CheckingRunner, LaunchedPlan, generate

CPU = torch.device("cpu")
BLOCK_SIZE = 2
NUM_BLOCKS = 12
MAX_SEQUENCES = 5


def assert_equal(batch: Batch | PendingTokens, expected: Batch | PendingTokens) -> None:
    """Compares all fields but the block tables, whose padding may differ."""
    for name in (each.name for each in fields(expected) if each.name != "block_tables"):
        own, other = getattr(batch, name), getattr(expected, name)
        if isinstance(other, torch.Tensor):
            assert own.dtype == other.dtype
            assert own.tolist() == other.tolist(), name
        elif isinstance(other, SlidingBlocks):
            assert own.slots.tolist() == other.slots.tolist()
        elif isinstance(other, PendingTokens):
            assert_equal(own, other)
        else:
            assert own == other, name


@dataclass
class PackingRunner:
    """Packs each plan before a checking runner executes it."""

    inner: CheckingRunner
    builders: tuple[BatchBuilder, ...]
    layouts: dict[int, SequenceLayout] = field(default_factory=dict[int, SequenceLayout])
    error: Exception | None = None
    """What went wrong here: the core takes it for a failed step."""

    def launch(self, plan: StepPlan) -> LaunchedPlan:
        try:
            self.follow(plan)
        except Exception as error:
            self.error = error
            raise
        return self.inner.launch(plan)

    def follow(self, plan: StepPlan) -> None:
        for builder in self.builders:
            for sequence_id in plan.ended:
                builder.remove(sequence_id)
        for start in plan.started:
            positions = np.random.default_rng(start.sequence_id).integers(0, 50, (3, len(start.prompt_token_ids)))
            layout = SequenceLayout(prompt_positions=positions, delta=start.sequence_id, spans=start.spans)
            self.layouts[start.sequence_id] = layout
            for builder in self.builders:
                builder.add(start.sequence_id, layout)
        if plan.chunks:
            self.compare(plan)

    def compare(self, plan: StepPlan) -> None:
        chunks = plan.chunks
        sources = {chunk.sequence_id: 100 + row for row, chunk in enumerate(chunks)}
        fresh = make_batch(chunks, self.layouts, block_size=BLOCK_SIZE, device=CPU, last_sampled_rows=sources)
        for builder in self.builders:
            batch = builder.build(chunks, last_sampled_rows=sources)
            assert_equal(batch, fresh)
            assert batch.block_tables.shape == fresh.block_tables.shape
            for row, chunk in zip(batch.block_tables.tolist(), chunks, strict=True):
                assert row[: len(chunk.block_table)] == list(chunk.block_table)
                assert all(0 <= block < NUM_BLOCKS for block in row)
            if batch.sliding is not None:
                for row, chunk in zip(batch.sliding.block_tables.tolist(), chunks, strict=True):
                    assert row[: len(chunk.block_table)] == list(chunk.sliding_table or ())


def packing_core(*, ahead: bool, num_sliding_blocks: int) -> tuple[Core, PackingRunner]:
    limits = replace(
        LIMITS,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=NUM_BLOCKS * BLOCK_SIZE,
        max_batch_tokens=16,
        max_sequences=MAX_SEQUENCES,
        max_draft_tokens=0 if ahead else 2,
        window=3,
        num_sliding_blocks=num_sliding_blocks,
    )
    inner = CheckingRunner(limits=limits, encoder_capacity_tokens=100)
    builders = tuple(BatchBuilder(block_size=BLOCK_SIZE, device=CPU, keeps_tables_there=own) for own in (False, True))
    runner = PackingRunner(inner, builders)
    model = ModelSpec(vocab_size=VOCAB_SIZE, encoder_row_width=1, eos_token_ids=(EOS,))
    return Core(runner=runner, model=model, limits=limits, max_waiting=100, async_scheduling=ahead), runner


requests = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(1, 14), st.integers(1, 3), st.integers(0, 2)
)


@settings(max_examples=40)
@given(
    ahead=st.booleans(),
    num_sliding_blocks=st.sampled_from([0, 10]),
    steps=st.lists(st.tuples(st.none() | requests, st.booleans(), st.integers(1, 4)), min_size=1, max_size=12),
)
def test_tables_that_follow_a_schedule_equal_fresh_ones(
    ahead: bool, num_sliding_blocks: int, steps: list[tuple[tuple[list[int], int, int, int] | None, bool, int]]
) -> None:
    """Requests come, share prefixes, are preempted, cancelled, restarted after failures, and end."""
    core, runner = packing_core(ahead=ahead, num_sliding_blocks=num_sliding_blocks)
    for number, (request, disturbs, num_steps) in enumerate(steps):
        if request is not None:
            prompt, max_tokens, num_completions, priority = request
            sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            sent = generate(str(number), prompt, sampling=sampling, num_completions=num_completions, priority=priority)
            for completion in sent.each():
                core.submit(completion)
        elif disturbs:
            runner.inner.fails = "after for want of memory"
        elif number:
            core.cancel(str(number - 1))
        for _ in range(num_steps):
            core.step()
    while core.has_work:
        core.step()
    if runner.error is not None:
        raise runner.error


def chunk(sequence_id: int, block_table: list[int], token_id: int = 5) -> SequenceChunk:
    start = len(block_table) * BLOCK_SIZE - 1
    return SequenceChunk(
        sequence_id=sequence_id, start=start, token_ids=(token_id,), block_table=block_table, samples=True
    )


def layouts_of(*sequence_ids: int) -> Mapping[int, SequenceLayout]:
    return {
        each: SequenceLayout(prompt_positions=np.zeros((3, 1), dtype=np.int64), delta=0, spans=())
        for each in sequence_ids
    }


@pytest.mark.parametrize("keeps_tables_there", [False, True])
def test_a_step_that_could_not_be_packed_loses_no_block(keeps_tables_there: bool) -> None:
    builder = BatchBuilder(block_size=BLOCK_SIZE, device=CPU, keeps_tables_there=keeps_tables_there)
    for sequence_id, layout in layouts_of(1, 2).items():
        builder.add(sequence_id, layout)
    tables = {1: [3, 4], 2: [7]}
    with pytest.raises(KeyError):  # nothing was sampled for it
        builder.build([chunk(1, tables[1]), chunk(2, tables[2], PENDING_TOKEN_ID)])
    tables[2] += [8, 9]
    batch = builder.build([chunk(2, tables[2]), chunk(1, tables[1])])
    assert batch.block_tables.tolist() == [[7, 8, 9], [3, 4, 0]]


@pytest.mark.parametrize("keeps_tables_there", [False, True])
def test_a_preempted_sequence_has_other_blocks_when_it_returns(keeps_tables_there: bool) -> None:
    builder = BatchBuilder(block_size=BLOCK_SIZE, device=CPU, keeps_tables_there=keeps_tables_there)
    builder.add(1, layouts_of(1)[1])
    assert builder.build([chunk(1, [3, 4])]).block_tables.tolist() == [[3, 4]]
    assert builder.build([chunk(1, [5, 6])]).block_tables.tolist() == [[5, 6]]
    assert builder.build([chunk(1, [8])]).block_tables.tolist() == [[8]]
