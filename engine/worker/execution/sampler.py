"""Samples tokens from logits on the host.

A row is adjusted (grammar, reasoning budget, min_tokens, bans, logit_bias, then penalties), its log-probabilities are
read, and a token is chosen: the argmax, or a draw from the softmax after temperature, min_p, top_k and top_p. The draw
is an inverse transform over the tokens from most to least likely, so a shortlist of the most likely tokens nearly
always contains it; otherwise the whole row is sorted. Rows that need nothing but the argmax share one and cost nothing
else.
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

from glimpse.engine.checkpoint.grammar.lark import GrammarError
from glimpse.engine.checkpoint.grammar.matcher import BoolArray, Matcher
from glimpse.engine.core.plan import Sample
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.execution.reasoning_limiter import ReasoningLimiter
from glimpse.engine.worker.execution.token_bans import TokenBans

SHORTLIST_SIZE = 256

FloatArray = npt.NDArray[np.float64]


class SequenceSampler:
    """The sampling state of one sequence: parameters, token counts for penalties, and random numbers.

    Each position in the answer has its own random number, so draws do not depend on the rest of the batch, nor on how
    often or in which order tokens are sampled.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        *,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        suppressed_token_ids: Sequence[int] = (),
        matcher: Matcher | None = None,
        limiter: ReasoningLimiter | None = None,
        grammar_start: int = 0,
    ) -> None:
        """
        Args:
            suppressed_token_ids: Tokens whose logits are -inf.
            matcher: Matches `sampling.grammar`; None before its trigger.
            grammar_start: Index in the answer of the first token that the grammar constrains.
        """
        self.sampling = sampling
        self.failure: str | None = None  # why the grammar cannot be followed further; samples do not count then
        self.num_generated = 0
        """Index in the answer of the next token. The runner sets it, because it may not report every token here."""
        self._suppressed = list(suppressed_token_ids)
        self._matcher = matcher
        self._limiter = limiter
        self._needs_host_sampling = sampling.needs_host_sampling or matcher is not None or limiter is not None
        self._grammar_start = grammar_start
        self._bans = TokenBans(sampling)
        self._always_changes_logits = bool(
            sampling.logit_bias
            or self._bans
            or sampling.has_penalties
            or self._matcher is not None
            or self._limiter is not None
        )
        self._generated: Counter[int] = Counter()
        self._prompt_token_ids = frozenset(prompt_token_ids) if sampling.repetition_penalty != 1.0 else frozenset[int]()
        ignores_eos = sampling.ignore_eos and matcher is None  # a grammar's end is an end
        end_token_ids = {*sampling.stop_token_ids, *(() if ignores_eos else eos_token_ids)}
        self._end_token_ids = sorted(end_token_ids)
        self._random = random.Random(sampling.seed)  # noqa: S311 - draws of text need no secrecy, seeds need repeatability
        self._uniforms: list[float] = []

    @property
    def needs_host_sampling(self) -> bool:
        """The next token does not depend on the model's logits alone."""
        return self._needs_host_sampling

    @property
    def is_plain_argmax(self) -> bool:
        """The next token is the argmax of the raw logits, and nothing else is requested."""
        return self.sampling.greedy and self.sampling.logprobs is None and not self._changes_logits

    def allowed_tokens(self) -> BoolArray | None:
        """Returns a mask [tokens] of those that the grammar and the reasoning budget allow next; None: all of them.

        After a `failure` it means nothing.
        """
        allowed = None if self._matcher is None or self.failure is not None else self._matching_tokens(self._matcher)
        return allowed if self._limiter is None else self._limiter.restrict(allowed)

    def _matching_tokens(self, matcher: Matcher) -> BoolArray | None:
        """Returns a mask [tokens] of those that the grammar allows next; None if it cannot be followed.

        End tokens are allowed where it is complete. With `min_tokens` or `ignore_eos` an answer continues as long as
        its grammar allows.
        """
        try:
            allowed = matcher.allowed()
        except GrammarError as error:
            self.failure = f"the grammar cannot be followed: {error}"
            return None
        allowed[self._end_token_ids] = False
        goes_on = self.sampling.ignore_eos or self.num_generated < self.sampling.min_tokens
        if matcher.complete and not (goes_on and allowed.any()):
            allowed[self._end_token_ids] = True
        allowed[self._suppressed] = False
        if not allowed.any():
            self.failure = "the grammar cannot be followed: no token continues or ends the answer"
            return None
        return allowed

    def adjust(self, row: Tensor) -> None:
        """Applies min_tokens, bans, logit_bias and penalties to one row of logits in place, float32 [vocab_size]."""
        if self._limiter is not None and (forced := self._limiter.forced_token_id) in self._suppressed:
            row[forced] = 0.0  # the only one that is left
        if self._bans_ends:
            row[self._end_token_ids] = float("-inf")
        if self._bans and not self._is_forced and not self._bans.apply(row) and self.failure is None:
            self.failure = "allowed_token_ids and bad_words leave no token that may follow"
        if self.sampling.logit_bias:
            token_ids = list(self.sampling.logit_bias)
            row[token_ids] += row.new_tensor(list(self.sampling.logit_bias.values()))
        if self.sampling.has_penalties:
            self._penalise(row)

    def append_token(self, token_id: int) -> None:
        """Records the next token of the answer."""
        self.num_generated += 1
        if self.sampling.has_penalties:
            self._generated[token_id] += 1
        self._bans.append_token(token_id)
        if self._limiter is not None:
            self._limiter.append_token(token_id)
        is_matched = self.failure is None and self.num_generated > self._grammar_start
        if self._matcher is not None and is_matched and token_id not in self._end_token_ids:
            self._matcher.accept(token_id)

    def draw(self) -> float:
        """Returns the sequence's random number for the next token, uniform in [0, 1)."""
        while len(self._uniforms) <= self.num_generated:
            self._uniforms.append(self._random.random())
        return self._uniforms[self.num_generated]

    @property
    def _is_forced(self) -> bool:
        """The reasoning budget has chosen the next token."""
        return self._limiter is not None and self._limiter.forced_token_id is not None

    @property
    def _bans_ends(self) -> bool:
        if self._is_forced:
            return False  # a closing tag is no end, even if it is one of `stop_token_ids`
        is_early = self.num_generated < self.sampling.min_tokens
        return is_early and bool(self._end_token_ids) and self._matcher is None

    @property
    def _changes_logits(self) -> bool:
        # Whatever else changes logits needs the host.
        return self._needs_host_sampling and bool(self._bans_ends or self._always_changes_logits)

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
    """Samples one token for each row and appends it to its sequence.

    Args:
        logits: float32 [rows, vocab_size]; changed in place.
    """
    _constrain(logits, sequences)
    demanding = [row for row, sequence in enumerate(sequences) if not sequence.is_plain_argmax]
    for row in demanding:
        sequences[row].adjust(logits[row])
    token_ids: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row in demanding if not sequences[row].sampling.greedy]
    if drawn:
        for row, token_id in zip(drawn, _draw(logits[drawn], [sequences[row] for row in drawn]), strict=True):
            token_ids[row] = token_id
    for sequence, token_id in zip(sequences, token_ids, strict=True):
        sequence.append_token(token_id)
    samples = [Sample(token_id=token_id) for token_id in token_ids]
    num_top = {row: num for row in demanding if (num := sequences[row].sampling.logprobs) is not None}
    if num_top:
        scored = _gather_logprobs(logits[[*num_top]], [token_ids[row] for row in num_top], [*num_top.values()])
        for row, scored_sample in zip(num_top, scored, strict=True):
            samples[row] = scored_sample
    return samples


def sample_with_draft_tokens(
    logits: Tensor, sequences: Sequence[SequenceSampler], draft_token_ids: Sequence[Sequence[int]]
) -> list[list[Sample]]:
    """Samples tokens for each sequence as long as they equal its draft tokens, and one more.

    Each token is sampled as it would be without draft tokens: from its own row, with the same random number, after the
    tokens before it were appended. So draft tokens do not change an answer: neither its distribution nor, with a seed,
    its tokens.

    Args:
        logits: float32 [rows, vocab_size]; changed in place. For each sequence in turn one row, and one for each draft
            token.

    Returns:
        For each sequence its accepted draft tokens and the token after them.
    """
    if not any(draft_token_ids):
        return [[chosen] for chosen in sample(logits, sequences)]
    ends = list(accumulate(1 + len(own) for own in draft_token_ids))
    first_rows = [end - 1 - len(own) for end, own in zip(ends, draft_token_ids, strict=True)]
    samples: list[list[Sample]] = [[] for _ in sequences]
    going = list(range(len(sequences)))
    for position in range(max(map(len, draft_token_ids)) + 1):
        rows = logits[[first_rows[index] + position for index in going]]
        for index, sampled in zip(going, sample(rows, [sequences[index] for index in going]), strict=True):
            samples[index].append(sampled)
        going = [
            index for index in going if samples[index][-1].token_id in draft_token_ids[index][position : position + 1]
        ]
        if not going:
            break
    return samples


def _constrain(logits: Tensor, sequences: Sequence[SequenceSampler]) -> None:
    """Masks the tokens that grammars and reasoning budgets forbid, in the rows of their sequences."""
    allowed = {row: own for row, sequence in enumerate(sequences) if (own := sequence.allowed_tokens()) is not None}
    if allowed:
        forbidden = torch.from_numpy(~np.stack([*allowed.values()])).to(logits.device)  # [rows, vocab_size]
        for row, own in zip(allowed, forbidden, strict=True):
            logits[row].masked_fill_(own, float("-inf"))


def draw_position(probs: FloatArray, *, complete: bool, sampling: SamplingParams, uniform: float) -> int | None:
    """Returns the position of the drawn token among the most likely ones; None if they do not determine it.

    Args:
        probs: Probabilities of the most likely tokens, descending. Over the whole vocabulary they sum to 1.
        complete: `probs` has all tokens.
        sampling: `min_p`, `top_k` and `top_p` are applied in this order, each to what the previous one left.
        uniform: Random number in [0, 1).
    """
    ends = probs.cumsum()
    num_kept = int(np.count_nonzero((probs >= sampling.min_p * probs[0]) & (probs > 0)))  # no forbidden token
    if sampling.top_k:
        num_kept = min(num_kept, sampling.top_k)
    bounded = complete or num_kept < len(probs) or num_kept == sampling.top_k  # all kept tokens are given
    if not bounded and (sampling.min_p or sampling.top_k):
        return None
    mass = float(ends[num_kept - 1]) if bounded else 1.0
    if sampling.top_p < 1.0:
        num_reaching = int(np.searchsorted(ends, sampling.top_p * mass)) + 1
        if not bounded and num_reaching > len(probs):
            return None
        num_kept, bounded = min(num_kept, num_reaching), True
        mass = float(ends[num_kept - 1])
    position = int(np.searchsorted(ends, uniform * mass, side="right"))
    if position >= num_kept and not bounded:
        return None
    return min(position, num_kept - 1)


def _draw(logits: Tensor, sequences: Sequence[SequenceSampler]) -> list[int]:
    temperatures = logits.new_tensor([sequence.sampling.temperature for sequence in sequences])
    scaled = logits / temperatures[:, None]
    totals = scaled.logsumexp(dim=-1, keepdim=True)
    shortlist = scaled.topk(min(SHORTLIST_SIZE, scaled.shape[1]), dim=-1)
    probs = probs_of(shortlist.values, totals)
    token_ids: list[int] = []
    for row, sequence in enumerate(sequences):
        uniform, order = sequence.draw(), shortlist.indices[row]
        complete = len(order) == scaled.shape[1]
        position = draw_position(probs[row], complete=complete, sampling=sequence.sampling, uniform=uniform)
        if position is None:
            token_ids.append(draw_from_all(scaled[row], totals[row], sequence.sampling, uniform))
        else:
            token_ids.append(int(order[position]))
    return token_ids


def draw_from_all(scaled: Tensor, total: Tensor, sampling: SamplingParams, uniform: float) -> int:
    """Draws a token from a whole row of logits over temperature, whose log-sum-exp is `total`."""
    values, order = scaled.sort(descending=True)
    position = draw_position(probs_of(values, total), complete=True, sampling=sampling, uniform=uniform)
    assert position is not None, "every draw falls into the whole vocabulary"
    return int(order[position])


def probs_of(scaled: Tensor, total: Tensor) -> FloatArray:
    """Returns probabilities, float64, from logits over temperature and their log-sum-exp over all tokens."""
    return (scaled - total).double().exp().cpu().numpy()


def _gather_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[Sample]:
    totals = logits.logsumexp(dim=-1, keepdim=True)  # [rows, 1]
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])  # [rows, 1]
    top = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    chosen_logprobs: list[float] = (chosen - totals).flatten().tolist()
    top_logprobs: list[list[float]] = (top.values - totals).tolist()
    top_token_ids: list[list[int]] = top.indices.tolist()
    return [
        Sample(token_id=token_id, logprob=logprob, top=finite_logprobs(ids[:num], logprobs[:num]))
        for token_id, logprob, ids, logprobs, num in zip(
            token_ids, chosen_logprobs, top_token_ids, top_logprobs, num_top, strict=True
        )
    ]


def finite_logprobs(token_ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Pairs tokens with log-probabilities, without the tokens that a grammar or `min_tokens` forbids."""
    pairs = zip(token_ids, logprobs, strict=True)
    return tuple((token_id, logprob) for token_id, logprob in pairs if math.isfinite(logprob))
