"""Chooses tokens from logits. Knows sampling parameters and what a sequence has said so far, no model and no schedule.

A row is adjusted (grammar, min_tokens, logit_bias, then penalties), its log-probabilities are read off, and a token is
taken: the largest logit, or a draw from the softmax after temperature, min_p, top_k and top_p. The draw is an inverse
transform over the tokens from most to least likely, so a shortlist of the likeliest nearly always holds it; where it
does not, the whole row is sorted. Rows that only want the largest logit share one argmax and pay for nothing else.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glimpse.engine.grammar.lark import GrammarError
from glimpse.engine.grammar.matcher import BoolArray, Matcher
from glimpse.engine.plan import Sample
from glimpse.engine.sampling_params import SamplingParams

SHORTLIST_SIZE = 256

FloatArray = npt.NDArray[np.float64]


class SequenceSampler:
    """One sequence's parameters, what penalties must know of its tokens, and its own source of chance.

    Its draws do not depend on what else is in a batch, nor on how often or in which order its tokens are asked for:
    each place of the answer has its own.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        matcher: Matcher | None = None,
    ) -> None:
        """`matcher` follows `sampling.grammar`."""
        self.sampling = sampling
        self.failure: str | None = None  # why the grammar cannot be followed any further; what is sampled then is void
        self.num_generated = 0
        """The place in the answer of the next token. Whoever knows it may set it where tokens were not counted."""
        self._matcher = matcher
        self._generated: Counter[int] = Counter()
        self._prompt_token_ids = frozenset(prompt_token_ids) if sampling.repetition_penalty != 1.0 else frozenset[int]()
        ignores_eos = sampling.ignore_eos and matcher is None  # a grammar's end is an end
        end_token_ids = {*sampling.stop_token_ids, *(() if ignores_eos else eos_token_ids)}
        self._end_token_ids = sorted(end_token_ids)
        self._random = random.Random(sampling.seed)  # noqa: S311 - draws of text need no secrecy, seeds need repeatability
        self._chances: list[float] = []

    @property
    def takes_largest(self) -> bool:
        """The next token is the largest of the raw logits and nothing else is asked for."""
        return self.sampling.greedy and self.sampling.logprobs is None and not self._adjusts

    def allowed_tokens(self) -> BoolArray | None:
        """Those that the grammar lets follow, [tokens]: ends exactly where it is complete.

        With `min_tokens` or `ignore_eos` an answer goes on for as long as its grammar lets it. None without a grammar,
        and once there is a `failure`.
        """
        if self._matcher is None or self.failure is not None:
            return None
        try:
            allowed = self._matcher.allowed()
        except GrammarError as error:
            self.failure = f"the grammar cannot be followed: {error}"
            return None
        allowed[self._end_token_ids] = False
        goes_on = self.sampling.ignore_eos or self.num_generated < self.sampling.min_tokens
        if self._matcher.complete and not (goes_on and allowed.any()):
            allowed[self._end_token_ids] = True
        if not allowed.any():
            self.failure = "the grammar cannot be followed: no token is left that continues or ends the answer"
            return None
        return allowed

    def adjust(self, row: Tensor) -> None:
        """Changes one row of logits in place, float32 [vocab_size], where it must."""
        if self._bans_ends:
            row[self._end_token_ids] = float("-inf")
        if self.sampling.logit_bias:
            token_ids = list(self.sampling.logit_bias)
            row[token_ids] += row.new_tensor(list(self.sampling.logit_bias.values()))
        if self.sampling.penalises:
            self._penalise(row)

    def count(self, token_id: int) -> None:
        """Takes note of the token that was chosen."""
        self.num_generated += 1
        if self.sampling.penalises:
            self._generated[token_id] += 1
        if self._matcher is not None and self.failure is None and token_id not in self._end_token_ids:
            self._matcher.accept(token_id)

    def draw(self) -> float:
        """The number of this sequence's own source, in [0, 1), for the next token."""
        while len(self._chances) <= self.num_generated:
            self._chances.append(self._random.random())
        return self._chances[self.num_generated]

    @property
    def _bans_ends(self) -> bool:
        is_early = self.num_generated < self.sampling.min_tokens
        return is_early and bool(self._end_token_ids) and self._matcher is None

    @property
    def _adjusts(self) -> bool:
        sampling = self.sampling
        return self._bans_ends or bool(sampling.logit_bias) or sampling.penalises or self._matcher is not None

    def _penalise(self, row: Tensor) -> None:
        sampling = self.sampling
        if sampling.repetition_penalty != 1.0 and (seen := self._prompt_token_ids | self._generated.keys()):
            token_ids = torch.tensor([*seen], device=row.device)
            logits = row[token_ids]
            factor = torch.where(logits > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
            row[token_ids] = logits * factor
        if self._generated:
            token_ids = torch.tensor([*self._generated], device=row.device)
            counts = row.new_tensor([*self._generated.values()])
            row[token_ids] -= counts * sampling.frequency_penalty + sampling.presence_penalty


def sample(logits: Tensor, sequences: Sequence[SequenceSampler]) -> list[Sample]:
    """Chooses one token for each row, and has each sequence count its own.

    Args:
        logits: float32 [rows, vocab_size]; changed in place.
        sequences: one for each row.
    """
    _constrain(logits, sequences)
    demanding = [row for row, sequence in enumerate(sequences) if not sequence.takes_largest]
    for row in demanding:
        sequences[row].adjust(logits[row])
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row in demanding if not sequences[row].sampling.greedy]
    if drawn:
        for row, token_id in zip(drawn, _draw(logits[drawn], [sequences[row] for row in drawn]), strict=True):
            token_ids[row] = token_id
    for sequence, token_id in zip(sequences, token_ids, strict=True):
        sequence.count(token_id)
    samples = [Sample(token_id=token_id) for token_id in token_ids]
    num_top = {row: num for row in demanding if (num := sequences[row].sampling.logprobs) is not None}
    if num_top:
        scored = _score(logits[[*num_top]], [token_ids[row] for row in num_top], [*num_top.values()])
        for row, scored_sample in zip(num_top, scored, strict=True):
            samples[row] = scored_sample
    return samples


def sample_with_draft_tokens(
    logits: Tensor, sequences: Sequence[SequenceSampler], guesses: Sequence[Sequence[int]]
) -> list[list[Sample]]:
    """Chooses tokens for each sequence for as long as its guesses say the same, and one beyond.

    Each token is chosen as it would be without guesses, from its own row and by the same draw, after those before it
    were counted. So guesses change nothing of an answer, neither its distribution nor, of a seed, its tokens.

    Args:
        logits: float32 [rows, vocab_size]; changed in place. Of each sequence in turn one row, and one for each guess.
        sequences: those that sample.
        guesses: at what each of them says next.
    """
    if not any(guesses):
        return [[chosen] for chosen in sample(logits, sequences)]
    ends = list(accumulate(1 + len(own) for own in guesses))
    first_rows = [end - 1 - len(own) for end, own in zip(ends, guesses, strict=True)]
    samples: list[list[Sample]] = [[] for _ in sequences]
    going = list(range(len(sequences)))
    for place in range(max(map(len, guesses)) + 1):
        rows = logits[[first_rows[index] + place for index in going]]
        for index, chosen in zip(going, sample(rows, [sequences[index] for index in going]), strict=True):
            samples[index].append(chosen)
        going = [index for index in going if samples[index][-1].token_id in guesses[index][place : place + 1]]
        if not going:
            break
    return samples


def _constrain(logits: Tensor, sequences: Sequence[SequenceSampler]) -> None:
    """Leaves the rows of sequences with a grammar only the tokens that it allows."""
    allowed = {row: own for row, sequence in enumerate(sequences) if (own := sequence.allowed_tokens()) is not None}
    if allowed:
        forbidden = torch.from_numpy(~np.stack([*allowed.values()])).to(logits.device)  # [rows, vocab_size]
        for row, own in zip(allowed, forbidden, strict=True):
            logits[row].masked_fill_(own, float("-inf"))


def draw_place(shares: FloatArray, *, complete: bool, sampling: SamplingParams, chance: float) -> int | None:
    """Which of the likeliest tokens is drawn, or None where those alone cannot tell.

    Args:
        shares: probabilities of the likeliest tokens, descending; over the whole vocabulary they sum to 1.
        complete: these are all tokens.
        sampling: `min_p`, `top_k` and `top_p` are applied in this order, each to what the one before left.
        chance: uniform in [0, 1).
    """
    ends = shares.cumsum()
    num_kept = int(np.count_nonzero((shares >= sampling.min_p * shares[0]) & (shares > 0)))  # none that is forbidden
    if sampling.top_k:
        num_kept = min(num_kept, sampling.top_k)
    bounded = complete or num_kept < len(shares) or num_kept == sampling.top_k  # no token that is not shown is kept
    if not bounded and (sampling.min_p or sampling.top_k):
        return None
    mass = float(ends[num_kept - 1]) if bounded else 1.0
    if sampling.top_p < 1.0:
        num_reaching = int(np.searchsorted(ends, sampling.top_p * mass)) + 1
        if not bounded and num_reaching > len(shares):
            return None
        num_kept, bounded = min(num_kept, num_reaching), True
        mass = float(ends[num_kept - 1])
    place = int(np.searchsorted(ends, chance * mass, side="right"))
    if place >= num_kept and not bounded:
        return None
    return min(place, num_kept - 1)


def _draw(logits: Tensor, sequences: Sequence[SequenceSampler]) -> list[int]:
    temperatures = logits.new_tensor([sequence.sampling.temperature for sequence in sequences])
    scaled = logits / temperatures[:, None]
    totals = scaled.logsumexp(dim=-1, keepdim=True)
    shortlist = scaled.topk(min(SHORTLIST_SIZE, scaled.shape[1]), dim=-1)
    shares = shares_of(shortlist.values, totals)
    token_ids: list[int] = []
    for row, sequence in enumerate(sequences):
        chance, order = sequence.draw(), shortlist.indices[row]
        complete = len(order) == scaled.shape[1]
        place = draw_place(shares[row], complete=complete, sampling=sequence.sampling, chance=chance)
        if place is None:
            values, order = scaled[row].sort(descending=True)
            place = draw_place(shares_of(values, totals[row]), complete=True, sampling=sequence.sampling, chance=chance)
            assert place is not None, "the whole vocabulary holds every draw"
        token_ids.append(int(order[place]))
    return token_ids


def shares_of(scaled: Tensor, total: Tensor) -> FloatArray:
    """Probabilities of tokens from their logits over temperature and the log-sum-exp over all tokens."""
    return (scaled - total).double().exp().cpu().numpy()


def _score(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[Sample]:
    totals = logits.logsumexp(dim=-1, keepdim=True)  # [rows, 1]
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # [rows, 1]
    top = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    chosen_logprobs: list[float] = (chosen - totals).flatten().tolist()
    top_logprobs: list[list[float]] = (top.values - totals).tolist()
    top_token_ids: list[list[int]] = top.indices.tolist()
    return [
        Sample(token_id=token_id, logprob=logprob, top=possible(ids[:num], logprobs[:num]))
        for token_id, logprob, ids, logprobs, num in zip(
            token_ids, chosen_logprobs, top_token_ids, top_logprobs, num_top, strict=True
        )
    ]


def possible(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Without the tokens that a grammar or `min_tokens` forbids."""
    pairs = zip(token_ids, logprobs, strict=True)
    return tuple((token_id, logprob) for token_id, logprob in pairs if math.isfinite(logprob))
