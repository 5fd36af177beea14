"""Carries out step plans on a model. Knows the sequences' layouts and samplers, the KV cache and the encoder outputs.

Which blocks, which chunks and which media: that is decided elsewhere and arrives in the plan.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glimpse.engine.cuda.graphs import DecodeGraphs
from glimpse.engine.execution.device_sampler import Choice
from glimpse.engine.execution.in_flight import Asked, ChosenStep, SampledStep, SilentStep, WithinMemory, within_memory
from glimpse.engine.execution.sampler import SequenceSampler
from glimpse.engine.grammar.matcher import GrammarCompiler, Matcher
from glimpse.engine.models.families import Model
from glimpse.engine.plan import (
    CompletedStep,
    Embeddings,
    Encode,
    InFlightStep,
    SequenceChunk,
    SequenceStart,
    StepPlan,
    StepResult,
)
from glimpse.engine.sampling_params import Grammar
from glimpse.engine.tensors.batch import SequenceLayout, make_batch
from glimpse.engine.tensors.kv_cache import KVCache
from glimpse.engine.tensors.transfer import Fence, upload_bytes

ShareOutputs = Callable[[Sequence[bytes], Mapping[bytes, Tensor]], Mapping[bytes, Tensor]]
"""From the keys of a step's media, and the outputs of those that this rank has encoded, to the outputs of all."""


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
        share_outputs: ShareOutputs | None = None,
        chooses_on_device: bool = False,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """
        Args:
            model: on the device, with its weights.
            cache: likewise.
            eos_token_ids: tokens that end an answer.
            device: of all tensors.
            dtype: of activations.
            grammars: for answers that follow one.
            share_outputs: set where ranks share the work: called in each step that encodes.
            chooses_on_device: tokens are chosen there where they can be, so a plan may contain PENDING_TOKEN_ID.
            graphs: recordings of decode steps; the last block of the cache is theirs.
        """
        self._model = model
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._dtype = dtype
        self._grammars = grammars
        self._share_outputs = share_outputs
        self._chooses_on_device = chooses_on_device
        self._graphs = graphs
        self._sequences: dict[int, RunningSequence] = {}
        # What the last step samples, int64 [rows] on the device, and of which sequence each is; of several ranks each
        # would have to be given the tensor.
        self._said: Tensor | None = None
        self._said_places: dict[int, int] = {}
        self._encoder_outputs: dict[bytes, Tensor] = {}  # [placeholder tokens, hidden_size] each

    @property
    def num_blocks(self) -> int:
        """Of the KV cache, for sequences."""
        return self._cache.num_blocks - (self._graphs is not None)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Records a decode step, where recordings are wanted and one is missing; False if there is nothing to do."""
        return self._graphs is not None and self._graphs.prepare()

    def compile(self, grammar: Grammar) -> Future[Any]:
        """Sees to it that a grammar is compiled, beside the steps. An answer begun before that is done waits for it."""
        return self._grammars.compile(grammar)

    def execute(self, plan: StepPlan) -> StepResult:
        """Carries out a step and waits for it."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Begins to carry out a step in the order that `StepPlan` states; on a GPU it does not wait for it.

        Sequences to forget and outputs to evict may be unknown here: after a step that failed they are named again.

        Raises:
            OutOfDeviceMemoryError: now, or when the result is asked for.
        """
        return WithinMemory(within_memory(lambda: self._launch(plan)))

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> InFlightStep:
        for sequence_id in plan.ended:
            self._sequences.pop(sequence_id, None)
        for start in plan.started:
            self._sequences[start.sequence_id] = self._begin(start)
        for key in plan.evicted:
            self._encoder_outputs.pop(key, None)
        if plan.encode:
            self._encoder_outputs |= self._encode(plan.encode)
        if not plan.chunks:
            return CompletedStep(StepResult())
        return self._sample(plan.chunks, self._compute(plan.chunks))

    def _begin(self, start: SequenceStart) -> RunningSequence:
        grammar = start.sampling.grammar
        sampler = SequenceSampler(
            start.sampling,
            prompt_token_ids=start.prompt_token_ids,
            eos_token_ids=self._eos_token_ids,
            matcher=None if grammar is None else Matcher(self._grammars, grammar),
        )
        for token_id in start.generated_token_ids:
            sampler.count(token_id)
        layout = self._model.layout(len(start.prompt_token_ids), start.spans)
        return RunningSequence(layout=layout, sampler=sampler)

    def _encode(self, media: Sequence[Encode]) -> Mapping[bytes, Tensor]:
        given = {medium.key: self._take(medium.content) for medium in media if isinstance(medium.content, Embeddings)}
        contents = {
            medium.key: (medium.content, medium.grid_thw) for medium in media if isinstance(medium.content, memoryview)
        }
        outputs = self._model.encode(list(contents.values())) if contents else []
        own = given | dict(zip(contents, outputs, strict=True))
        return own if self._share_outputs is None else self._share_outputs([medium.key for medium in media], own)

    def _take(self, embeddings: Embeddings) -> Tensor:
        values = upload_bytes(embeddings.data, self._device).view(getattr(torch, embeddings.dtype))
        return values.view(-1, self._model.decoder.config.hidden_size).to(self._device, self._dtype)

    def _compute(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """float32 [rows, vocab_size]: what follows the chunks that sample, and what follows before each guess."""
        layouts = {chunk.sequence_id: self._sequences[chunk.sequence_id].layout for chunk in chunks}
        batch = make_batch(
            chunks, layouts, block_size=self._cache.block_size, device=self._device, said=self._said_places
        )
        if batch.pending_tokens is not None:
            assert self._said is not None
            batch.token_ids[batch.pending_tokens.rows] = self._said[batch.pending_tokens.places]
        logits = None if self._graphs is None else self._graphs.compute(batch)
        return self._model(batch, self._cache, self._encoder_outputs) if logits is None else logits

    def _sample(self, chunks: Sequence[SequenceChunk], logits: Tensor) -> InFlightStep:
        self._said, self._said_places = None, {}
        asked = [self._ask(chunk) for chunk in chunks if chunk.samples]
        if not asked:
            return SilentStep(Fence(self._device))
        if not self._chooses_on_device or not all(each.is_chosen_from_logits for each in asked):
            return SampledStep(asked, logits)
        choice = Choice(logits, [each.sampler for each in asked])
        self._said, self._said_places = choice.token_ids, {each.sequence_id: row for row, each in enumerate(asked)}
        return ChosenStep(asked, choice)

    def _ask(self, chunk: SequenceChunk) -> Asked:
        sequence = self._sequences[chunk.sequence_id]
        num_known = len(chunk.token_ids) - chunk.num_draft_tokens
        # Said here, for tokens that are chosen on the device are not counted one by one.
        sequence.sampler.num_generated = chunk.start + num_known - sequence.layout.num_prompt_tokens
        return Asked(sequence_id=chunk.sequence_id, sampler=sequence.sampler, guesses=chunk.token_ids[num_known:])
