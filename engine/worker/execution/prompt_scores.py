"""Scores the tokens of prompts: the log-probability of each after those before it, chunk by chunk.

A row of logits has a value for each token of the vocabulary, so only few rows exist at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.core.plan import InFlightStep, SequenceChunk, StepResult
from glimpse.engine.protocol.messages import TokenLogprobs
from glimpse.engine.worker.execution.sampler import finite_logprobs
from glimpse.engine.worker.tensors.transfer import Download

_ROWS_AT_ONCE = 64
Head = Callable[[Tensor], Tensor]
"""Returns the logits, float32 [rows, vocab_size], of hidden states before the final norm, [rows, hidden_size]."""


class PromptScorer:
    """The scores of one sequence's prompt so far."""

    def __init__(self, prompt_token_ids: Sequence[int], num_top: int) -> None:
        """`num_top`: how many of the most likely tokens are returned at each position."""
        self._prompt_token_ids = prompt_token_ids
        self._num_top = num_top
        self._scores: list[TokenLogprobs] = []

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._prompt_token_ids)

    def rows(self, chunk: SequenceChunk) -> range:
        """Returns the tokens of a chunk, counted from its first one, that a token of the prompt follows."""
        return range(max(0, min(len(chunk.token_ids), len(self._prompt_token_ids) - 1 - chunk.start)))

    def compute(self, chunk: SequenceChunk, hidden: Tensor, head: Head) -> Tensor:
        """Scores the tokens that follow `rows`, whose hidden states are given.

        Returns:
            float64 [rows, 2 + 2 · top]: rank and log-probability of the token, then the most likely tokens' ids and
            their log-probabilities.
        """
        first = chunk.start + 1
        targets = torch.tensor(self._prompt_token_ids[first : first + len(hidden)], device=hidden.device)
        pieces = zip(hidden.split(_ROWS_AT_ONCE), targets.split(_ROWS_AT_ONCE), strict=True)
        return torch.cat([_score(head(rows), own, self._num_top) for rows, own in pieces])

    def add(self, chunk: SequenceChunk, values: np.ndarray) -> None:
        """Adds what `compute` returned. A chunk that starts at the first token begins anew, after a preemption."""
        if chunk.start == 0:
            self._scores.clear()
        if not self.rows(chunk):
            return
        for row in values.reshape(len(self.rows(chunk)), -1):
            rank, logprob, *top = row.tolist()
            token_ids, logprobs = top[: len(top) // 2], top[len(top) // 2 :]
            finite = list(finite_logprobs(list(map(int, token_ids)), logprobs))
            self._scores.append(TokenLogprobs(rank=int(rank), logprob=logprob, top=finite))

    @property
    def scores(self) -> list[TokenLogprobs]:
        """Scores of all tokens but the first, once all chunks were added."""
        return [*self._scores]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredChunk:
    """A chunk whose tokens are being scored."""

    chunk: SequenceChunk
    scorer: PromptScorer
    values: Download
    """What `PromptScorer.compute` returned."""


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """A step that scores tokens of prompts."""

    step: InFlightStep
    scored: Sequence[ScoredChunk]

    def result(self) -> StepResult:
        for own in self.scored:
            own.scorer.add(own.chunk, own.values.wait().numpy())
        scores = {own.chunk.sequence_id: own.scorer.scores for own in self.scored if own.chunk.samples}
        return replace(self.step.result(), prompt_logprobs=scores)


def score_chunks(
    chunks: Sequence[SequenceChunk], scorers: Mapping[int, PromptScorer], hidden: Tensor, head: Head
) -> list[ScoredChunk]:
    """Starts to score the prompts' tokens of a step; the arguments are those of `pool_chunks`."""
    scored: list[ScoredChunk] = []
    first_row = 0
    for chunk in chunks:
        scorer = scorers.get(chunk.sequence_id)
        rows = range(0) if scorer is None else scorer.rows(chunk)
        if scorer is not None and rows:
            states = hidden[first_row : first_row + len(rows)]
            scored.append(ScoredChunk(chunk=chunk, scorer=scorer, values=Download(scorer.compute(chunk, states, head))))
        elif scorer is not None and chunk.samples and chunk.start < scorer.num_prompt_tokens:
            scored.append(ScoredChunk(chunk=chunk, scorer=scorer, values=Download(hidden.new_empty(0).double())))
        first_row += len(chunk.token_ids)
    return scored


def _score(logits: Tensor, targets: Tensor, num_top: int) -> Tensor:
    """Returns what `PromptScorer.compute` does, of a few rows of logits."""
    totals = logits.logsumexp(dim=-1, keepdim=True)
    own = logits.gather(1, targets[:, None])
    ranks = (logits > own).sum(dim=-1, keepdim=True) + 1
    top = logits.topk(min(num_top, logits.shape[1]), dim=-1)
    parts = (ranks, own - totals, top.indices, top.values - totals)
    return torch.cat([part.double() for part in parts], dim=-1)
