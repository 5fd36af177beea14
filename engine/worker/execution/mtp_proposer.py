"""Proposes draft tokens with a model's layer of multi-token prediction.

The layer has keys and values of its own, in the same blocks as those of the decoder. It computes all tokens of a step
once the tokens after them are known: those of prompts, accepted draft tokens and the sampled ones. What it writes for
rejected draft tokens is overwritten later, as in the decoder's layers. A block's last token may be followed by another
one in a sequence that shares the block, which makes a draft worse at most.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from glimpse.engine.core.plan import SequenceChunk, SequenceStart, StepResult
from glimpse.engine.worker.models.model import Model, RecordedLayer
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.batch_builder import BatchBuilder
from glimpse.engine.worker.tensors.kv_cache import KVCache

_NO_ROW = -1
"""In place of a row, of chunks after which nothing is proposed."""


class _Proposal(NamedTuple):
    """Draft tokens that a sequence has so far."""

    chunk: SequenceChunk
    place: int
    """Index in the sequence of the next token that the layer computes."""
    token_ids: list[int]


class MTPProposer:
    """The layer of a model, and what is known of the sequences of a runner."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        batches: BatchBuilder,
        recorded: RecordedLayer | None = None,
        share: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """
        Args:
            batches: has the runner's sequences.
            recorded: recorded steps of the layer.
            share: with several ranks: returns the numbers of rank 0, which alone samples and knows answers.
        """
        self._model = model
        self._cache = cache
        self._batches = batches
        self._recorded = recorded
        self._share = share or (lambda numbers: numbers)
        self._token_ids: dict[int, list[int]] = {}  # sequence id → prompt and answer

    def begin(self, start: SequenceStart) -> None:
        """Takes in a sequence, or one that is restarted."""
        self._token_ids[start.sequence_id] = [*start.prompt_token_ids, *start.generated_token_ids]

    def end(self, sequence_id: int) -> None:
        """Forgets a sequence, if it is known."""
        self._token_ids.pop(sequence_id, None)

    @torch.inference_mode()
    def propose(
        self,
        chunks: Sequence[SequenceChunk],
        batch: Batch,
        hidden: Tensor,
        encoder_outputs: Mapping[bytes, Tensor],
        result: StepResult,
    ) -> Mapping[int, tuple[int, ...]]:
        """Computes the layer for a step's tokens, and draft tokens for the next step.

        Args:
            batch: made of `chunks`.
            hidden: [tokens, hidden_size]: states of the decoder.
            result: what the step has sampled.

        Returns:
            Sequence id → its draft tokens, as many as its chunk asks for, if its blocks have place for them.
        """
        for chunk in chunks:
            if chunk.samples:
                sampled = (*result.accepted.get(chunk.sequence_id, ()), result.samples[chunk.sequence_id])
                self._token_ids[chunk.sequence_id] += [sample.token_id for sample in sampled]
        following = [token_id for chunk in chunks for token_id in self._following(chunk)]
        numbers = self._share(torch.tensor([*following, *map(self._last_row, chunks)]))
        states = self._model.draft_states(
            batch,
            numbers[: len(hidden)].to(hidden.device),
            self._model.decoder.norm(hidden),
            self._cache,
            encoder_outputs,
            self._recorded,
        )
        rows, drafts = list[int](), list[_Proposal]()
        for first, chunk, row in zip(
            (0, *accumulate(batch.query_lengths)), chunks, numbers[len(hidden) :].tolist(), strict=False
        ):
            if row != _NO_ROW:
                rows.append(first + row)
                drafts.append(_Proposal(chunk, chunk.start + row + 1, []))
        self._extend(drafts, states[rows])
        return {draft.chunk.sequence_id: tuple(draft.token_ids) for draft in drafts}

    def _following(self, chunk: SequenceChunk) -> Iterator[int]:
        """Yields the token after each of a chunk: any, where it is not known or a draft token was rejected."""
        known = self._token_ids[chunk.sequence_id][chunk.start + 1 : chunk.start + 1 + len(chunk.token_ids)]
        yield from known
        yield from chunk.token_ids[len(known) :]

    def _last_row(self, chunk: SequenceChunk) -> int:
        """Returns which of a chunk's tokens is the last one that was accepted; `_NO_ROW` if none shall be proposed."""
        if not chunk.samples or not chunk.num_proposed_tokens:
            return _NO_ROW
        return len(self._token_ids[chunk.sequence_id]) - 2 - chunk.start

    def _extend(self, drafts: Sequence[_Proposal], states: Tensor) -> None:
        """Appends to drafts the likeliest tokens after `states`, [drafts, hidden_size], and after each other."""
        model, block_size = self._model, self._cache.block_size
        while drafts:
            logits = model.draft_logits(states)
            likeliest = logits.argmax(dim=1).cpu() if len(logits) else torch.zeros(len(drafts), dtype=torch.int64)
            for draft, token_id in zip(drafts, self._share(likeliest).tolist(), strict=True):
                draft.token_ids.append(token_id)
            going = [
                row
                for row, (chunk, place, token_ids) in enumerate(drafts)
                if len(token_ids) < chunk.num_proposed_tokens and place < len(chunk.block_table) * block_size
            ]
            if not going:
                return
            drafts, states = [drafts[row] for row in going], states[going]
            batch = self._batches.build(
                [
                    SequenceChunk(
                        sequence_id=chunk.sequence_id,
                        start=place,
                        token_ids=tuple(token_ids[-1:]),
                        block_table=chunk.block_table,
                        samples=True,
                    )
                    for chunk, place, token_ids in drafts
                ]
            )
            assert model.mtp is not None
            hidden = model.mtp.repeated(states)
            states = model.draft_states(batch, batch.token_ids, hidden, self._cache, {}, self._recorded)
            drafts = [draft._replace(place=draft.place + 1) for draft in drafts]
