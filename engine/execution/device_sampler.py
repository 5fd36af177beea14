"""Chooses tokens where the logits are, for all rows at once and without waiting: the next step can be launched at once.

For sequences whose choice depends on the logits alone (`SamplingParams.adjusts` is false). The arithmetic is that of
`engine.execution.sampler`, with a shortlist too. Where a shortlist cannot tell which token is drawn, the whole row is
sorted when the results are asked for: then the token differs from the one that a step launched meanwhile was handed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.execution.sampler import SHORTLIST_SIZE, SequenceSampler, draw_place, possible, shares_of
from glimpse.engine.plan import Sample
from glimpse.engine.tensors.transfer import Download, upload


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is kept of each row's tokens, and where in it the draw falls."""

    top_k: Tensor
    """int64 [rows]; 0 keeps all."""
    min_p: Tensor
    """float64 [rows]"""
    top_p: Tensor
    """float64 [rows]"""
    chance: Tensor
    """float64 [rows], uniform in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draws:
    """Rows of which a token is drawn."""

    rows: Sequence[int]
    """Of the logits."""
    indices: Tensor
    """int64 [rows]: the same."""
    sequences: Sequence[SequenceSampler]
    chances: Sequence[float]
    scaled: Tensor
    """float32 [rows, vocab_size]: logits over temperature."""
    totals: Tensor
    """float32 [rows, 1]: their log-sum-exp."""
    token_ids: Tensor
    """int64 [rows]"""
    told: Tensor
    """bool [rows]: the shortlist could tell."""

    def sorted_draw(self, index: int) -> int:
        """The token that is drawn from all of a row."""
        values, order = self.scaled[index].sort(descending=True)
        place = draw_place(
            shares_of(values, self.totals[index]),
            complete=True,
            sampling=self.sequences[index].sampling,
            chance=self.chances[index],
        )
        assert place is not None, "the whole vocabulary holds every draw"
        return int(order[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Rows of which log-probabilities are wanted."""

    rows: Sequence[int]
    """Of the logits."""
    num_top: Sequence[int]
    logits: Tensor
    """float32 [rows, vocab_size]: a copy, for the next step may take the place of the others."""
    totals: Tensor
    """float32 [rows, 1]"""
    chosen: Tensor
    """float32 [rows, 1]: log-probability of the token that was taken."""
    top: Tensor
    """float32 [rows, tokens]: the largest log-probabilities."""
    top_token_ids: Tensor
    """int64 [rows, tokens]: their tokens."""


class Choice:
    """The tokens of a step's rows."""

    def __init__(self, logits: Tensor, sequences: Sequence[SequenceSampler]) -> None:
        """Begins to choose a token for each row.

        Args:
            logits: float32 [rows, vocab_size]
            sequences: one for each row, none of which adjusts its logits.
        """
        drawn = [row for row, sequence in enumerate(sequences) if not sequence.sampling.greedy]
        scored = [row for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
        self.token_ids = logits.argmax(dim=-1)
        """int64 [rows], on the device."""
        self._draws = _draw(logits, drawn, [sequences[row] for row in drawn]) if drawn else None
        if self._draws is not None:
            self.token_ids[self._draws.indices] = self._draws.token_ids
        self._scores = _score(logits, self.token_ids, scored, sequences) if scored else None
        self._download = Download(torch.cat([part.double().flatten() for part in self._parts()]))

    def result(self) -> tuple[list[Sample], frozenset[int]]:
        """Waits for the tokens; those of these rows are others than `token_ids` says."""
        numbers = self._download.wait().numpy()
        bounds = np.cumsum([part.numel() for part in self._parts()])[:-1]
        token_ids, *rest = np.split(numbers, bounds)
        samples = [Sample(token_id=int(token_id)) for token_id in token_ids]
        mispredicted: dict[int, int] = {}
        if self._draws is not None:
            told, *rest = rest
            unknown = np.flatnonzero(told == 0).tolist()
            mispredicted = {self._draws.rows[index]: self._draws.sorted_draw(index) for index in unknown}
        mispredicted = {row: token_id for row, token_id in mispredicted.items() if token_id != samples[row].token_id}
        for row, token_id in mispredicted.items():
            samples[row] = Sample(token_id=token_id)
        if self._scores is not None:
            self._add_scores(samples, self._scores, rest, mispredicted)
        return samples, frozenset(mispredicted)

    def _parts(self) -> list[Tensor]:
        """What the host wants to know."""
        draws = [] if self._draws is None else [self._draws.told]
        scores = self._scores
        return [self.token_ids, *draws, *([] if scores is None else [scores.chosen, scores.top, scores.top_token_ids])]

    @staticmethod
    def _add_scores(
        samples: list[Sample], scores: _Scores, parts: Sequence[np.ndarray], mispredicted: dict[int, int]
    ) -> None:
        chosen, top, token_ids = (part.reshape(len(scores.rows), -1) for part in parts)
        for index, (row, num_top) in enumerate(zip(scores.rows, scores.num_top, strict=True)):
            logprob = chosen[index, 0]
            if row in mispredicted:
                logprob = scores.logits[index, mispredicted[row]] - scores.totals[index, 0]
            samples[row] = Sample(
                token_id=samples[row].token_id,
                logprob=float(logprob),
                top=possible(token_ids[index, :num_top].astype(int).tolist(), top[index, :num_top].tolist()),
            )


def draw_places(shares: Tensor, limits: Limits, *, complete: bool) -> tuple[Tensor, Tensor]:
    """`glimpse.engine.execution.sampler.draw_place` of many rows at once.

    Args:
        shares: float64 [rows, tokens]: probabilities of each row's likeliest tokens, descending.
        limits: of the rows.
        complete: these are all tokens.

    Returns:
        int64 [rows]: places, and bool [rows]: whether the likeliest tokens alone could tell them.
    """
    num_shown = shares.shape[1]
    ends = shares.cumsum(dim=-1)

    def mass_of(num_kept: Tensor) -> Tensor:
        return ends.gather(1, num_kept[:, None] - 1)[:, 0]

    kept = ((shares >= limits.min_p[:, None] * shares[:, :1]) & (shares > 0)).sum(dim=-1)
    kept = torch.where(limits.top_k > 0, kept.minimum(limits.top_k), kept).clamp(min=1)  # also of logits that are NaN
    bounded = (kept < num_shown) | (kept == limits.top_k)
    if complete:
        bounded = torch.ones_like(bounded)
    told = bounded | ((limits.min_p == 0) & (limits.top_k == 0))
    mass = torch.where(bounded, mass_of(kept), 1.0)
    # As many tokens as lie before a bound: what a search in `ends`, which ascend, would find.
    reaching = (ends < (limits.top_p * mass)[:, None]).sum(dim=-1) + 1
    cuts = limits.top_p < 1.0
    told &= ~cuts | bounded | (reaching <= num_shown)
    kept = torch.where(cuts, kept.minimum(reaching), kept)
    mass = torch.where(cuts, mass_of(kept), mass)
    places = (ends <= (limits.chance * mass)[:, None]).sum(dim=-1)
    told &= bounded | cuts | (places < kept)
    return places.minimum(kept - 1), told


def _draw(logits: Tensor, rows: list[int], sequences: list[SequenceSampler]) -> _Draws:
    params = [sequence.sampling for sequence in sequences]
    chances = [sequence.draw() for sequence in sequences]
    indices, top_k, temperature, min_p, top_p, chance = upload(
        [
            np.array(rows),
            np.array([sampling.top_k for sampling in params]),
            np.array([sampling.temperature for sampling in params], dtype=np.float64),
            np.array([sampling.min_p for sampling in params], dtype=np.float64),
            np.array([sampling.top_p for sampling in params], dtype=np.float64),
            np.array(chances),
        ],
        logits.device,
    )
    own = logits if len(rows) == len(logits) else logits[indices]
    scaled = own / temperature.float()[:, None]
    totals = scaled.logsumexp(dim=-1, keepdim=True)
    values, order = scaled.topk(min(SHORTLIST_SIZE, scaled.shape[1]), dim=-1)
    limits = Limits(top_k=top_k, min_p=min_p, top_p=top_p, chance=chance)
    shares = (values - totals).double().exp()
    places, told = draw_places(shares, limits, complete=shares.shape[1] == scaled.shape[1])
    return _Draws(
        rows=rows,
        indices=indices,
        sequences=sequences,
        chances=chances,
        scaled=scaled,
        totals=totals,
        token_ids=order.gather(1, places[:, None])[:, 0],
        told=told,
    )


def _score(logits: Tensor, token_ids: Tensor, rows: list[int], sequences: Sequence[SequenceSampler]) -> _Scores:
    (indices,) = upload([np.array(rows)], logits.device)
    num_top = [sequences[row].sampling.logprobs or 0 for row in rows]
    own = logits[indices]
    totals = own.logsumexp(dim=-1, keepdim=True)
    top = own.topk(min(max(num_top), own.shape[1]), dim=-1)
    return _Scores(
        rows=rows,
        num_top=num_top,
        logits=own,
        totals=totals,
        chosen=own.gather(1, token_ids[indices][:, None]) - totals,
        top=top.values - totals,
        top_token_ids=top.indices,
    )
