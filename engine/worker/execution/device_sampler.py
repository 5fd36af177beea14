"""Samples tokens on the device, all rows at once and without waiting, so that the next step can be launched at once.

This serves sequences whose next token depends on the logits alone (`SamplingParams.needs_host_sampling` is False).
Kernels of the backend draw from whole rows (`engine/worker/cuda/sampling.py`). Without them the arithmetic is that of
`engine/worker/execution/sampler.py`, shortlist included: if a shortlist does not determine which token is drawn, the
whole row is sorted when results are requested. The token may then differ from the one that the next step was launched
with: the row is mispredicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glimpse.engine.core.plan import Sample
from glimpse.engine.worker.execution.sampler import SHORTLIST_SIZE, SequenceSampler, draw_from_all, finite_logprobs
from glimpse.engine.worker.tensors.draws import DrawParams, DrawTokens
from glimpse.engine.worker.tensors.transfer import Download, upload


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draws:
    """Rows whose tokens are drawn from shortlists."""

    rows: Sequence[int]
    """Indices into the logits."""
    sequences: Sequence[SequenceSampler]
    uniforms: Sequence[float]
    scaled: Tensor
    """float32 [rows, vocab_size]: logits over temperature."""
    totals: Tensor
    """float32 [rows, 1]: log-sum-exp of `scaled`."""
    resolved: Tensor
    """bool [rows]: the shortlist determines the token."""

    def sorted_draw(self, index: int) -> int:
        """Draws the token from the whole row."""
        sampling, uniform = self.sequences[index].sampling, self.uniforms[index]
        return draw_from_all(self.scaled[index], self.totals[index], sampling, uniform)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogprobRows:
    """Rows whose log-probabilities are requested."""

    rows: Sequence[int]
    """Indices into the logits."""
    num_top: Sequence[int]
    logits: Tensor
    """float32 [rows, vocab_size]: a copy, because the next step may overwrite the original."""
    totals: Tensor
    """float32 [rows, 1]"""
    chosen: Tensor
    """float32 [rows, 1]: log-probability of the sampled token."""
    top: Tensor
    """float32 [rows, tokens]: the largest log-probabilities."""
    top_token_ids: Tensor
    """int64 [rows, tokens]: their tokens."""


class DeviceSample:
    """The sampled tokens of a step's rows."""

    def __init__(
        self, logits: Tensor, sequences: Sequence[SequenceSampler], draw_tokens: DrawTokens | None = None
    ) -> None:
        """Starts to sample a token for each row.

        Args:
            logits: float32 [rows, vocab_size]
            sequences: One for each row. None needs host sampling.
            draw_tokens: The backend's kernels. Without, tokens are drawn from shortlists.
        """
        drawn = [row for row, sequence in enumerate(sequences) if not sequence.sampling.greedy]
        scored = [row for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
        replaces_all = draw_tokens is not None and len(drawn) == len(sequences)
        self.token_ids = (
            torch.empty(len(logits), dtype=torch.int64, device=logits.device) if replaces_all else logits.argmax(dim=-1)
        )
        """int64 [rows], on the device."""
        self._draws: _Draws | None = None
        if drawn:
            samplers = [sequences[row] for row in drawn]
            uniforms = [sampler.draw() for sampler in samplers]
            params = _upload_params(drawn, samplers, uniforms, logits.device)
            if draw_tokens is None:
                self._draws = _draw(logits, self.token_ids, params, drawn, samplers, uniforms)
            else:
                draw_tokens(logits, params, self.token_ids)
        self._logprob_rows = _gather_logprobs(logits, self.token_ids, scored, sequences) if scored else None
        self._download = Download(torch.cat([part.double().flatten() for part in self._parts()]))

    def result(self) -> tuple[list[Sample], frozenset[int]]:
        """Waits for the samples. Also returns the mispredicted rows, whose tokens differ from `token_ids`."""
        numbers = self._download.wait().numpy()
        bounds = np.cumsum([part.numel() for part in self._parts()])[:-1]
        token_ids, *rest = np.split(numbers, bounds)
        samples = [Sample(token_id=int(token_id)) for token_id in token_ids]
        mispredicted: dict[int, int] = {}
        if self._draws is not None:
            resolved, *rest = rest
            unknown = np.flatnonzero(resolved == 0).tolist()
            mispredicted = {self._draws.rows[index]: self._draws.sorted_draw(index) for index in unknown}
        mispredicted = {row: token_id for row, token_id in mispredicted.items() if token_id != samples[row].token_id}
        for row, token_id in mispredicted.items():
            samples[row] = Sample(token_id=token_id)
        if self._logprob_rows is not None:
            self._add_logprobs(samples, self._logprob_rows, rest, mispredicted)
        return samples, frozenset(mispredicted)

    def _parts(self) -> list[Tensor]:
        """What is downloaded to the host."""
        draws = [] if self._draws is None else [self._draws.resolved]
        scores = self._logprob_rows
        return [self.token_ids, *draws, *([] if scores is None else [scores.chosen, scores.top, scores.top_token_ids])]

    @staticmethod
    def _add_logprobs(
        samples: list[Sample], scores: _LogprobRows, parts: Sequence[np.ndarray], mispredicted: dict[int, int]
    ) -> None:
        chosen, top, token_ids = (part.reshape(len(scores.rows), -1) for part in parts)
        for index, (row, num_top) in enumerate(zip(scores.rows, scores.num_top, strict=True)):
            logprob = chosen[index, 0]
            if row in mispredicted:
                logprob = scores.logits[index, mispredicted[row]] - scores.totals[index, 0]
            samples[row] = Sample(
                token_id=samples[row].token_id,
                logprob=float(logprob),
                top=finite_logprobs(token_ids[index, :num_top].astype(int).tolist(), top[index, :num_top].tolist()),
            )


def draw_positions(probs: Tensor, params: DrawParams, *, complete: bool) -> tuple[Tensor, Tensor]:
    """Computes `glimpse.engine.worker.execution.sampler.draw_position` for many rows at once.

    Args:
        probs: float64 [rows, tokens]: probabilities of each row's most likely tokens, descending.
        complete: `probs` has all tokens.

    Returns:
        int64 [rows]: positions. bool [rows]: whether the given tokens determine them.
    """
    num_shown = probs.shape[1]
    ends = probs.cumsum(dim=-1)

    def mass_of(num_kept: Tensor) -> Tensor:
        return ends.gather(1, num_kept[:, None] - 1)[:, 0]

    kept = ((probs >= params.min_p[:, None] * probs[:, :1]) & (probs > 0)).sum(dim=-1)
    kept = torch.where(params.top_k > 0, kept.minimum(params.top_k), kept).clamp(
        min=1
    )  # at least 1, also if logits are NaN
    bounded = (kept < num_shown) | (kept == params.top_k)
    if complete:
        bounded = torch.ones_like(bounded)
    resolved = bounded | ((params.min_p == 0) & (params.top_k == 0))
    mass = torch.where(bounded, mass_of(kept), 1.0)
    # Counts the tokens before a bound, which is what searchsorted in the ascending `ends` finds.
    reaching = (ends < (params.top_p * mass)[:, None]).sum(dim=-1) + 1
    cuts = params.top_p < 1.0
    resolved &= ~cuts | bounded | (reaching <= num_shown)
    kept = torch.where(cuts, kept.minimum(reaching), kept)
    mass = torch.where(cuts, mass_of(kept), mass)
    positions = (ends <= (params.uniform * mass)[:, None]).sum(dim=-1)
    resolved &= bounded | cuts | (positions < kept)
    return positions.minimum(kept - 1), resolved


def _upload_params(
    rows: Sequence[int], sequences: Sequence[SequenceSampler], uniforms: Sequence[float], device: torch.device
) -> DrawParams:
    samplings = [sequence.sampling for sequence in sequences]
    columns = {
        "rows": np.array(rows),
        "temperature": np.array([sampling.temperature for sampling in samplings], dtype=np.float64),
        "top_k": np.array([sampling.top_k for sampling in samplings]),
        "min_p": np.array([sampling.min_p for sampling in samplings], dtype=np.float64),
        "top_p": np.array([sampling.top_p for sampling in samplings], dtype=np.float64),
        "uniform": np.array(uniforms),
    }
    return DrawParams(**upload(columns, device))


def _draw(
    logits: Tensor,
    token_ids: Tensor,
    params: DrawParams,
    rows: Sequence[int],
    sequences: Sequence[SequenceSampler],
    uniforms: Sequence[float],
) -> _Draws:
    """Draws from shortlists and writes the tokens to `token_ids`, int64 [rows of logits]."""
    own = logits if len(rows) == len(logits) else logits[params.rows]
    scaled = own / params.temperature.float()[:, None]
    totals = scaled.logsumexp(dim=-1, keepdim=True)
    values, order = scaled.topk(min(SHORTLIST_SIZE, scaled.shape[1]), dim=-1)
    probs = (values - totals).double().exp()
    positions, resolved = draw_positions(probs, params, complete=probs.shape[1] == scaled.shape[1])
    token_ids[params.rows] = order.gather(1, positions[:, None])[:, 0]
    return _Draws(rows=rows, sequences=sequences, uniforms=uniforms, scaled=scaled, totals=totals, resolved=resolved)


def _gather_logprobs(
    logits: Tensor, token_ids: Tensor, rows: list[int], sequences: Sequence[SequenceSampler]
) -> _LogprobRows:
    indices = upload({"rows": np.array(rows)}, logits.device)["rows"]
    num_top = [sequences[row].sampling.logprobs or 0 for row in rows]
    own = logits[indices]
    totals = own.logsumexp(dim=-1, keepdim=True)
    top = own.topk(min(max(num_top), own.shape[1]), dim=-1)
    return _LogprobRows(
        rows=rows,
        num_top=num_top,
        logits=own,
        totals=totals,
        chosen=own.gather(1, token_ids[indices][:, None]) - totals,
        top=top.values - totals,
        top_token_ids=top.indices,
    )
