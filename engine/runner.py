"""Carries out step plans on a model. Knows the sequences' layouts and samplers, the KV cache and the encoder outputs.

Which blocks, which chunks and which media: that is decided elsewhere and arrives in the plan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import SequenceLayout, make_batch
from engine.grammar import GrammarCompiler, Matcher
from engine.kv_cache import KVCache
from engine.models.families import Model
from engine.plan import Embeddings, Encode, SequenceChunk, SequenceStart, StepPlan, StepResult
from engine.sampler import SequenceSampler, sample_through


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSequence:
    """What lives in the runner from a sequence's start until its end, preemptions included."""

    layout: SequenceLayout
    sampler: SequenceSampler


class ModelRunner:
    """One model on one device."""

    def __init__(
        self,
        *,
        model: Model,
        cache: KVCache,
        eos_token_ids: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype,
        grammars: GrammarCompiler,
    ) -> None:
        self._model = model
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._dtype = dtype
        self._grammars = grammars
        self._sequences: dict[int, RunningSequence] = {}
        self._encoder_outputs: dict[bytes, Tensor] = {}  # [placeholder tokens, hidden_size] each

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Carries out a step in the order that `StepPlan` states.

        Sequences to forget and outputs to evict may be unknown here: after a step that failed they are named again.
        """
        for sequence_id in plan.ended:
            self._sequences.pop(sequence_id, None)
        for start in plan.started:
            self._sequences[start.sequence_id] = self._begin(start)
        for key in plan.evicted:
            self._encoder_outputs.pop(key, None)
        for medium in plan.encode:
            self._encoder_outputs[medium.key] = self._encode(medium)
        if not plan.chunks:
            return StepResult()
        return self._compute(plan.chunks)

    def _begin(self, start: SequenceStart) -> RunningSequence:
        grammar = start.sampling.grammar
        return RunningSequence(
            layout=self._model.layout(len(start.prompt_token_ids), start.spans),
            sampler=SequenceSampler(
                start.sampling,
                prompt_token_ids=start.prompt_token_ids,
                eos_token_ids=self._eos_token_ids,
                matcher=None if grammar is None else Matcher(self._grammars, grammar),
            ),
        )

    def _encode(self, medium: Encode) -> Tensor:
        if not isinstance(medium.pixels, Embeddings):
            return self._model.encode(medium.pixels, medium.grid_thw)
        values = torch.frombuffer(bytearray(medium.pixels.data), dtype=getattr(torch, medium.pixels.dtype))
        return values.view(-1, self._model.decoder.config.hidden_size).to(self._device, self._dtype)

    def _compute(self, chunks: tuple[SequenceChunk, ...]) -> StepResult:
        layouts = {chunk.sequence_id: self._sequences[chunk.sequence_id].layout for chunk in chunks}
        batch = make_batch(chunks, layouts, block_size=self._cache.block_size, device=self._device)
        logits = self._model(batch, self._cache, self._encoder_outputs)
        sampled = [chunk for chunk in chunks if chunk.samples]
        if not sampled:
            return StepResult()
        guesses = [chunk.token_ids[len(chunk.token_ids) - chunk.num_guesses :] for chunk in sampled]
        samplers = [self._sequences[chunk.sequence_id].sampler for chunk in sampled]
        samples = sample_through(logits, samplers, guesses)
        return StepResult(
            samples={chunk.sequence_id: own[-1] for chunk, own in zip(sampled, samples, strict=True)},
            guessed={chunk.sequence_id: tuple(own[:-1]) for chunk, own in zip(sampled, samples, strict=True)},
            failed={
                chunk.sequence_id: sampler.failure
                for chunk, sampler in zip(sampled, samplers, strict=True)
                if sampler.failure is not None
            },
        )
