"""Pools the hidden states of prompts into embeddings, chunk by chunk."""

import math
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
        self._earlier: Tensor | None = None  # pooled states of earlier chunks

    def rows(self, chunk: SequenceChunk) -> range:
        """Returns the tokens of a chunk, counted from its first one, whose hidden states `pool` needs."""
        if self.params.needs_all_states:
            return range(len(chunk.token_ids))
        return range(len(chunk.token_ids) - self._completes(chunk), len(chunk.token_ids))

    def pool(self, chunk: SequenceChunk, states: Tensor) -> Tensor | None:
        """Adds the states of `rows`, float32 [rows, size], or their logits, [rows, tokens].

        A chunk that starts at the first token starts pooling anew: the sequence may have been preempted.

        Returns:
            The embedding, float32 [size], or with a vector for each token [prompt tokens, size], or the logits, if the
            chunk completes the prompt; else None.
        """
        if not self.params.needs_all_states:
            return states[0] if self._completes(chunk) else None
        earlier = self._earlier if chunk.start else None
        assert chunk.start == 0 or earlier is not None, "the states of all tokens are needed"
        is_mean = self.params.mode is PoolingMode.MEAN
        total = states.sum(dim=0) if is_mean else states
        if earlier is not None:
            total = earlier + total if is_mean else torch.cat([earlier, total])
        self._earlier = None if self._completes(chunk) else total
        if not self._completes(chunk):
            return None
        return total / self._num_prompt_tokens if is_mean else total

    def _completes(self, chunk: SequenceChunk) -> bool:
        return chunk.start + len(chunk.token_ids) == self._num_prompt_tokens


@dataclass(frozen=True, slots=True)
class PooledStep:
    """A step that completes the prompts of sequences that pool."""

    step: InFlightStep
    """What else the step computes."""
    params: Mapping[int, PoolingParams]
    """Sequence id → how its embedding is finished."""
    shapes: Sequence[Sequence[int]]
    """Shape of the values of each sequence, in the order of `params`."""
    pooled: Download
    """float32 [values of all sequences], in the same order."""

    def result(self) -> StepResult:
        pooled = np.split(self.pooled.wait().numpy(), np.cumsum([math.prod(shape) for shape in self.shapes])[:-1])
        embeddings = {
            sequence_id: finish_embedding(values.reshape(shape), params)
            for (sequence_id, params), values, shape in zip(self.params.items(), pooled, self.shapes, strict=True)
        }
        return replace(self.step.result(), embeddings=embeddings)


def pool_chunks(
    chunks: Sequence[SequenceChunk],
    poolers: Mapping[int, SequencePooler],
    hidden: Tensor,
    *,
    project: Callable[[Tensor], Tensor],
    head: Callable[[Tensor], Tensor],
) -> dict[int, Tensor]:
    """Pools the hidden states of a step.

    Args:
        poolers: Sequence id → pooler, for the sequences that pool.
        hidden: [tokens, hidden_size], before the final norm.
        project: Returns what is pooled, float32 [rows, size], of such rows; see `Model.embedding_states`.
        head: Returns the logits, float32 [rows, vocab_size], of rows of hidden states before the final norm.

    Returns:
        Sequence id → what `SequencePooler.pool` returns, of the prompts that are complete.
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
    states = [*_of_rows(embedded, project), *_of_rows(scored, head)]
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
    """Cuts vectors, [size] or [tokens, size], then normalizes each; returns their values, or logits, as little-endian
    float32."""
    if params.token_ids:
        return pooled.astype("<f4").tobytes()
    values = pooled[..., : params.dimensions].astype(np.float64)
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    if params.normalize:
        values /= np.where(lengths > 0, lengths, 1)
    return values.astype("<f4").tobytes()
