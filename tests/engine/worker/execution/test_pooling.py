"""Pooling of hidden states: chunks of embeddings, of scores and of answers in one step."""

import numpy as np
import pytest
import torch

from glimpse.engine.core.plan import CompletedStep, Sample, SequenceChunk, StepResult
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.worker.execution.pooling import PooledStep, SequencePooler, finish_embedding, pool_chunks
from glimpse.engine.worker.tensors.transfer import Download

LAST = PoolingParams(normalize=False)
MEAN = PoolingParams(mode=PoolingMode.MEAN, normalize=False)
SCORE = PoolingParams(mode=PoolingMode.MEAN, token_ids=(3, 1))


def chunk(sequence_id: int, start: int, length: int) -> SequenceChunk:
    return SequenceChunk(sequence_id=sequence_id, start=start, token_ids=(0,) * length, block_table=(0,), samples=False)


def norm(rows: torch.Tensor) -> torch.Tensor:
    return 2 * rows


def head(rows: torch.Tensor) -> torch.Tensor:
    """Logits of five tokens: the sum of the row, plus the token."""
    return rows.sum(dim=1, keepdim=True) + torch.arange(5)


def test_each_sequence_of_a_step_is_pooled_as_it_asks() -> None:
    hidden = torch.arange(24, dtype=torch.float32).view(8, 3)
    # Rows: 0-1 mean, 2 an answer, 3-4 score, 5-6 last, 7 the middle of another prompt.
    chunks = [chunk(1, 0, 2), chunk(2, 9, 1), chunk(3, 4, 2), chunk(4, 0, 2), chunk(5, 0, 1)]
    poolers = {
        1: SequencePooler(MEAN, num_prompt_tokens=2),
        3: SequencePooler(SCORE, num_prompt_tokens=6),
        4: SequencePooler(LAST, num_prompt_tokens=2),
        5: SequencePooler(LAST, num_prompt_tokens=3),
    }
    pooled = pool_chunks(chunks, poolers, hidden, project=norm, head=head)
    assert pooled.keys() == {1, 3, 4}
    assert pooled[1].tolist() == (2 * hidden[:2].mean(dim=0)).tolist()
    assert pooled[3].tolist() == [hidden[4].sum().item() + 3, hidden[4].sum().item() + 1]
    assert pooled[4].tolist() == (2 * hidden[6]).tolist()


@pytest.mark.parametrize(
    ("params", "expected"),
    [(MEAN, [4.0, 4.0]), (PoolingParams(mode=PoolingMode.TOKEN), [[2.0, 2.0], [2.0, 2.0], [8.0, 8.0]])],
)
def test_pooling_begins_anew_with_the_first_token(params: PoolingParams, expected: list[object]) -> None:
    pooler = {1: SequencePooler(params, num_prompt_tokens=3)}
    first, second = torch.ones(2, 2), torch.full((1, 2), 4.0)

    def pool(start: int, hidden: torch.Tensor) -> dict[int, torch.Tensor]:
        return pool_chunks([chunk(1, start, len(hidden))], pooler, hidden, project=norm, head=head)

    assert pool(0, torch.full((2, 2), 100.0)) == {}  # then it is preempted
    assert pool(0, first) == {}
    assert pool(2, second)[1].tolist() == expected


def test_a_step_returns_embeddings_of_several_lengths_beside_samples() -> None:
    step = PooledStep(
        CompletedStep(StepResult(samples={7: Sample(token_id=5)})),
        {1: PoolingParams(), 2: SCORE, 3: PoolingParams(mode=PoolingMode.TOKEN, dimensions=1)},
        [(3,), (2,), (2, 2)],
        Download(torch.tensor([3.0, 0.0, 4.0, -1.0, 2.5, 2.0, 7.0, -3.0, 7.0])),
    )
    result = step.result()
    assert result.samples[7].token_id == 5
    values = {key: np.frombuffer(data, dtype="<f4").tolist() for key, data in result.embeddings.items()}
    assert values == {1: [np.float32(0.6), 0.0, np.float32(0.8)], 2: [-1.0, 2.5], 3: [1.0, -1.0]}


def test_cuts_before_it_normalizes_and_leaves_zeros() -> None:
    vector = np.array([3, 4, 100], dtype=np.float32)
    cut = finish_embedding(vector, PoolingParams(dimensions=2))
    assert np.frombuffer(cut, dtype="<f4").tolist() == [np.float32(0.6), np.float32(0.8)]
    assert finish_embedding(np.zeros(2, dtype=np.float32), PoolingParams()) == bytes(8)
