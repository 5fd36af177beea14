"""Pools the hidden states of prompts into embeddings, chunk by chunk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glimpse.engine.core.plan import InFlightStep, SequenceChunk, StepResult
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.worker.tensors.transfer import Download


class SequencePooler:
    """The pooling state of one sequence."""

    def __init__(self, params: PoolingParams, *, num_prompt_tokens: int) -> None:
        self.params = params
        self._num_prompt_tokens = num_prompt_tokens
        self._sum: Tensor | None = None  # of the hidden states of earlier chunks, float32 [hidden_size]

    def rows(self, chunk: SequenceChunk) -> range:
        """Returns the tokens of a chunk, counted from its first one, whose hidden states `pool` needs."""
        if self._is_mean:
            return range(len(chunk.token_ids))
        return range(len(chunk.token_ids) - self._completes(chunk), len(chunk.token_ids))

    def pool(self, chunk: SequenceChunk, states: Tensor) -> Tensor | None:
        """Adds the hidden states of `rows`, float32 [rows, hidden_size], or their logits, [rows, tokens].

        A chunk that starts at the first token starts pooling anew: the sequence may have been preempted.

        Returns:
            The embedding, float32 [hidden_size], or the logits, if the chunk completes the prompt; else None.
        """
        if not self._is_mean:
            return states[0] if self._completes(chunk) else None
        earlier = self._sum if chunk.start else None
        assert chunk.start == 0 or earlier is not None, "the mean needs the hidden states of all tokens"
        total = states.sum(dim=0) if earlier is None else earlier + states.sum(dim=0)
        self._sum = None if self._completes(chunk) else total
        return total / self._num_prompt_tokens if self._completes(chunk) else None

    @property
    def _is_mean(self) -> bool:
        return self.params.mode is PoolingMode.MEAN and not self.params.token_ids

    def _completes(self, chunk: SequenceChunk) -> bool:
        return chunk.start + len(chunk.token_ids) == self._num_prompt_tokens


@dataclass(frozen=True, slots=True)
class PooledStep:
    """A step that completes the prompts of sequences that pool."""

    step: InFlightStep
    """What else the step computes."""
    params: Mapping[int, PoolingParams]
    """Sequence id → how its embedding is finished."""
    lengths: Sequence[int]
    """Values of each sequence, in the order of `params`."""
    pooled: Download
    """float32 [values of all sequences], in the same order."""

    def result(self) -> StepResult:
        pooled = np.split(self.pooled.wait().numpy(), np.cumsum(self.lengths)[:-1])
        embeddings = {
            sequence_id: finish_embedding(vector, params)
            for (sequence_id, params), vector in zip(self.params.items(), pooled, strict=True)
        }
        return replace(self.step.result(), embeddings=embeddings)


def pool_chunks(
    chunks: Sequence[SequenceChunk],
    poolers: Mapping[int, SequencePooler],
    hidden: Tensor,
    *,
    norm: Callable[[Tensor], Tensor],
    head: Callable[[Tensor], Tensor],
) -> dict[int, Tensor]:
    """Pools the hidden states of a step.

    Args:
        poolers: Sequence id → pooler, for the sequences that pool.
        hidden: [tokens, hidden_size], before the final norm.
        head: Returns the logits, float32 [rows, vocab_size], of rows of hidden states before the final norm.

    Returns:
        Sequence id → embedding, float32 [hidden_size], or the requested logits, of the prompts that are complete.
    """
    pieces: list[tuple[SequenceChunk, Tensor]] = []
    first_row = 0
    for chunk in chunks:
        if (pooler := poolers.get(chunk.sequence_id)) is not None:
            rows = pooler.rows(chunk)
            pieces.append((chunk, hidden[first_row + rows.start : first_row + rows.stop]))
        first_row += len(chunk.token_ids)
    scored = [piece for piece in pieces if poolers[piece[0].sequence_id].params.token_ids]
    embedded = [piece for piece in pieces if not poolers[piece[0].sequence_id].params.token_ids]
    # The norm of float32 values is float32, whatever the dtype of its weights.
    states = [*_of_rows(embedded, lambda rows: norm(rows.float()).float()), *_of_rows(scored, head)]
    pooled: dict[int, Tensor] = {}
    for (chunk, _), own in zip([*embedded, *scored], states, strict=True):
        pooler = poolers[chunk.sequence_id]
        token_ids = list(pooler.params.token_ids)
        vector = pooler.pool(chunk, own[:, token_ids] if token_ids else own)
        if vector is not None:
            pooled[chunk.sequence_id] = vector
    return pooled


def _of_rows(pieces: Sequence[tuple[SequenceChunk, Tensor]], compute: Callable[[Tensor], Tensor]) -> Sequence[Tensor]:
    """Computes a function of the rows of all pieces at once, and returns the part of each."""
    if not pieces:
        return ()
    return compute(torch.cat([rows for _, rows in pieces])).split([len(rows) for _, rows in pieces])


def finish_embedding(pooled: npt.NDArray[np.float32], params: PoolingParams) -> bytes:
    """Cuts an embedding, then normalizes it; returns its values, or logits, as little-endian float32."""
    if params.token_ids:
        return pooled.astype("<f4").tobytes()
    values = pooled[: params.dimensions].astype(np.float64)
    length = np.linalg.norm(values)
    if params.normalize and length > 0:
        values /= length
    return values.astype("<f4").tobytes()
