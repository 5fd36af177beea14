"""Executes step plans on a model. Holds the layout and sampler of each sequence, the KV cache and the encoder outputs.

The plan decides everything: which blocks, which chunks, which media.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher
from glimpse.engine.core.plan import (
    CompletedStep,
    Encode,
    InFlightStep,
    SequenceChunk,
    SequenceStart,
    StepPlan,
    StepResult,
)
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.sampling_params import Grammar
from glimpse.engine.worker.execution.device_sampler import DeviceSample
from glimpse.engine.worker.execution.in_flight import (
    DeviceSampledStep,
    EncodingStep,
    HostSampledStep,
    MemoryGuardedStep,
    ProposingStep,
    SamplingRows,
    UnsampledStep,
    guard_memory,
)
from glimpse.engine.worker.execution.mtp_proposer import MTPProposer
from glimpse.engine.worker.execution.pooling import PooledStep, SequencePooler, pool_chunks
from glimpse.engine.worker.execution.prompt_scores import PromptScorer, ScoredStep, score_chunks
from glimpse.engine.worker.execution.reasoning_limiter import ReasoningLimiter
from glimpse.engine.worker.execution.sampler import SequenceSampler
from glimpse.engine.worker.models.model import Model, RecordedLayer
from glimpse.engine.worker.tensors.batch import Batch, SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import BatchBuilder
from glimpse.engine.worker.tensors.draws import DrawTokens
from glimpse.engine.worker.tensors.kv_cache import KVCache
from glimpse.engine.worker.tensors.prefault import Prefault
from glimpse.engine.worker.tensors.transfer import Download, Fence, Stopwatch, upload_bytes

ShareOutputs = Callable[[Sequence[bytes], Mapping[bytes, Tensor]], Mapping[bytes, Tensor]]
"""Takes the keys of a step's media and the outputs that this rank has encoded; returns the outputs of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSequence:
    """What the runner keeps of a sequence from its start to its end, also while it is preempted."""

    layout: SequenceLayout
    sampler: SequenceSampler
    pooler: SequencePooler | None = None
    """Pooler of a sequence that pools instead of sampling."""
    scorer: PromptScorer | None = None


class RecordedDecode(Protocol):
    """Decode steps that were recorded once and are replayed: CUDA graphs, or programs on a CPU."""

    @property
    def num_scratch_blocks(self) -> int:
        """Blocks at the end of the KV cache that no sequence may use."""
        ...

    def prepare(self) -> bool:
        """Records a step that is missing. Returns False if there is none to record ahead of time."""
        ...

    def compute(self, batch: Batch) -> Tensor | None:
        """Returns the logits of a decode step, float32 [tokens, vocab_size], which are valid until the next step; if
        the model proposes draft tokens, its hidden states, [tokens, hidden_size].

        Returns None if the step is not a decode step or cannot be recorded.
        """
        ...


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
        share_numbers: Callable[[Tensor], Tensor] | None = None,
        samples_on_device: bool = False,
        recorded: RecordedDecode | None = None,
        recorded_mtp: RecordedLayer | None = None,
        draw_tokens: DrawTokens | None = None,
        suppressed_token_ids: Sequence[int] = (),
    ) -> None:
        """
        Args:
            suppressed_token_ids: Tokens of the vocabulary that are never sampled.
            share_outputs: With several ranks: called in each step that encodes.
            share_numbers: With several ranks: returns rank 0's numbers.
            samples_on_device: Tokens are sampled there where possible, so a plan may contain PENDING_TOKEN_ID.
            recorded: Recorded decode steps of the model and the cache. Without, no step is recorded.
            recorded_mtp: Recorded steps of its layer of multi-token prediction.
            draw_tokens: The backend's kernels that draw tokens on the device; None if it has none.
        """
        self._model = model
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._suppressed_token_ids = suppressed_token_ids
        self._suppressed = torch.tensor(suppressed_token_ids, dtype=torch.int64, device=device)
        self._device = device
        self._dtype = dtype
        self._grammars = grammars
        self._share_outputs = share_outputs
        self._samples_on_device = samples_on_device
        self._recorded = recorded
        self._prefault = Prefault(cache)
        self._draw_tokens = draw_tokens
        self._sequences: dict[int, RunningSequence] = {}
        self._batches = BatchBuilder(block_size=cache.block_size, device=device)
        self._mtp = None if model.mtp is None else MTPProposer(model, cache, self._batches, recorded_mtp, share_numbers)
        self._prompt_readers: set[int] = set()  # sequences that pool, or whose prompts are scored
        # The tokens that the last step sampled on the device, int64 [rows], and the row of each sequence. Other ranks
        # do not have the tensor.
        self._last_sampled: Tensor | None = None
        self._last_sampled_rows: dict[int, int] = {}
        self._encoder_outputs: dict[bytes, Tensor] = {}  # [placeholder tokens, encoder_row_width] each

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache for sequences."""
        return self._cache.num_blocks - (0 if self._recorded is None else self._recorded.num_scratch_blocks)

    @property
    def num_sliding_blocks(self) -> int:
        """See `KVCache`."""
        return self._cache.num_sliding_blocks

    @property
    def num_states(self) -> int:
        """States of the KV cache; 0 if no layer keeps one."""
        return self._cache.num_states

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Records a decode step or maps memory ahead of time; returns False if there is nothing to do."""
        return (self._recorded is not None and self._recorded.prepare()) or self._prefault.advance()

    def compile(self, grammar: Grammar) -> Future[Any]:
        """Starts to compile a grammar in the background. A sequence started before it is done waits for it."""
        return self._grammars.compile(grammar)

    def execute(self, plan: StepPlan) -> StepResult:
        """Executes a step and waits for it."""
        return self.launch(plan).result()

    def launch(self, plan: StepPlan) -> InFlightStep:
        """Starts to execute a step in the order that `StepPlan` states. On a GPU this does not wait for it.

        `ended` and `evicted` may contain unknown ids and keys: after a failed step they are repeated.

        Raises:
            OutOfDeviceMemoryError: here or from the result.
        """
        return MemoryGuardedStep(guard_memory(lambda: self._launch(plan)))

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> InFlightStep:
        for sequence_id in plan.ended:
            self._sequences.pop(sequence_id, None)
            self._batches.remove(sequence_id)
            self._prompt_readers.discard(sequence_id)
            if self._mtp is not None:
                self._mtp.end(sequence_id)
        for start in plan.started:
            sequence = self._sequences[start.sequence_id] = self._begin(start)
            self._batches.add(start.sequence_id, sequence.layout, self._model.adapters.slots.get(start.adapter))
            if self._mtp is not None:
                self._mtp.begin(start)
            if sequence.pooler is not None or sequence.scorer is not None:
                self._prompt_readers.add(start.sequence_id)
        for key in plan.evicted:
            self._encoder_outputs.pop(key, None)
        if not plan.encode:
            return self._launch_chunks(plan)
        with Stopwatch(self._device) as stopwatch:
            self._encoder_outputs |= self._encode(plan.encode)
        return EncodingStep(self._launch_chunks(plan), stopwatch)

    def _launch_chunks(self, plan: StepPlan) -> InFlightStep:
        if not plan.chunks:
            return CompletedStep(StepResult())
        self._prefault.use(plan.chunks)
        batch = self._make_batch(plan.chunks)
        if not self._prompt_readers and self._mtp is None:
            return self._sample(plan.chunks, self._compute(batch))
        poolers, scorers = self._poolers(plan.chunks), self._scorers(plan.chunks)
        if not poolers and not scorers and self._mtp is None:
            return self._sample(plan.chunks, self._compute(batch))
        hidden = None if self._mtp is None or self._recorded is None else self._recorded.compute(batch)
        if hidden is None:
            hidden = self._model.hidden_states(batch, self._cache, self._encoder_outputs)
        step = self._sample(plan.chunks, self._model.logits_of_rows(hidden[batch.sampled_rows]))
        if self._mtp is not None:
            step = ProposingStep(step, partial(self._mtp.propose, plan.chunks, batch, hidden, self._encoder_outputs))
        if scorers:
            step = ScoredStep(step, score_chunks(plan.chunks, scorers, hidden, self._model.logits_of_rows))
        pooled = pool_chunks(
            plan.chunks, poolers, hidden, project=self._model.embedding_states, head=self._model.logits_of_rows
        )
        return self._with_embeddings(step, pooled, poolers)

    def _begin(self, start: SequenceStart) -> RunningSequence:
        grammar, budget = start.sampling.grammar, start.sampling.reasoning_budget
        waits = grammar is not None and grammar.trigger is not None and start.grammar_start is None
        sampler = SequenceSampler(
            start.sampling,
            prompt_token_ids=start.prompt_token_ids,
            eos_token_ids=self._eos_token_ids,
            suppressed_token_ids=self._suppressed_token_ids,
            matcher=Matcher(self._grammars, grammar) if grammar is not None and not waits else None,
            grammar_start=start.grammar_start or 0,
            limiter=None if budget is None else ReasoningLimiter(budget, self._grammars.vocabulary.tokens),
        )
        for token_id in start.generated_token_ids:
            sampler.append_token(token_id)
        layout = self._model.layout(len(start.prompt_token_ids), start.spans)
        pooler = None
        if start.pooling is not None:
            pooler = SequencePooler(start.pooling, num_prompt_tokens=len(start.prompt_token_ids))
        num_top, scorer = start.sampling.prompt_logprobs, None
        if num_top is not None and not start.generated_token_ids:
            scorer = PromptScorer(start.prompt_token_ids, num_top)
        return RunningSequence(layout=layout, sampler=sampler, pooler=pooler, scorer=scorer)

    def _encode(self, media: Sequence[Encode]) -> Mapping[bytes, Tensor]:
        uploaded = {
            medium.key: self._upload(medium.content) for medium in media if isinstance(medium.content, Embeddings)
        }
        encoded = [medium for medium in media if isinstance(medium.content, memoryview)]
        outputs = self._model.encode(encoded) if encoded else []
        own = uploaded | {medium.key: output for medium, output in zip(encoded, outputs, strict=True)}
        return own if self._share_outputs is None else self._share_outputs([medium.key for medium in media], own)

    def _upload(self, embeddings: Embeddings) -> Tensor:
        values = upload_bytes(embeddings.data, self._device).view(getattr(torch, embeddings.dtype))
        return values.view(-1, self._model.decoder.config.encoder_row_width).to(self._device, self._dtype)

    def _make_batch(self, chunks: Sequence[SequenceChunk]) -> Batch:
        """Returns the batch of a step. Tokens that the last step sampled on the device are filled in."""
        batch = self._batches.build(chunks, last_sampled_rows=self._last_sampled_rows)
        if batch.pending_tokens is not None:
            assert self._last_sampled is not None
            batch.token_ids[batch.pending_tokens.rows] = self._last_sampled[batch.pending_tokens.sources]
        return batch

    def _poolers(self, chunks: Sequence[SequenceChunk]) -> dict[int, SequencePooler]:
        """Sequence id → pooler, of the chunks whose sequences pool."""
        pairs = ((chunk.sequence_id, self._sequences[chunk.sequence_id].pooler) for chunk in chunks)
        return {sequence_id: pooler for sequence_id, pooler in pairs if pooler is not None}

    def _scorers(self, chunks: Sequence[SequenceChunk]) -> dict[int, PromptScorer]:
        """Sequence id → scorer, of the chunks with tokens of a prompt that is scored."""
        pairs = ((chunk, self._sequences[chunk.sequence_id].scorer) for chunk in chunks)
        return {
            chunk.sequence_id: scorer
            for chunk, scorer in pairs
            if scorer is not None and chunk.start < scorer.num_prompt_tokens
        }

    def _with_embeddings(
        self, step: InFlightStep, pooled: Mapping[int, Tensor], poolers: Mapping[int, SequencePooler]
    ) -> InFlightStep:
        if not pooled:
            return step
        params = {sequence_id: poolers[sequence_id].params for sequence_id in pooled}
        shapes, values = zip(*((each.shape, each.flatten()) for each in pooled.values()), strict=True)
        return PooledStep(step, params, shapes, Download(torch.cat(values)))

    def _compute(self, batch: Batch) -> Tensor:
        """Returns the logits of the sampled rows, float32 [rows, vocab_size]."""
        logits = None if self._recorded is None else self._recorded.compute(batch)
        return self._model(batch, self._cache, self._encoder_outputs) if logits is None else logits

    def _sample(self, chunks: Sequence[SequenceChunk], logits: Tensor) -> InFlightStep:
        self._last_sampled, self._last_sampled_rows = None, {}
        rows = [self._sampling_rows(chunk) for chunk in chunks if chunk.samples]
        if not rows:
            return UnsampledStep(Fence(self._device))
        if self._suppressed_token_ids:
            logits.index_fill_(1, self._suppressed, float("-inf"))
        if not self._samples_on_device or any(own.needs_host_sampling for own in rows):
            return HostSampledStep(rows, logits)
        sample = DeviceSample(logits, [own.sampler for own in rows], self._draw_tokens)
        self._last_sampled = sample.token_ids
        self._last_sampled_rows = {own.sequence_id: row for row, own in enumerate(rows)}
        return DeviceSampledStep(rows, sample)

    def _sampling_rows(self, chunk: SequenceChunk) -> SamplingRows:
        sequence = self._sequences[chunk.sequence_id]
        num_known = len(chunk.token_ids) - chunk.num_draft_tokens
        # Set here because the sampler does not see tokens that are sampled on the device.
        sequence.sampler.num_generated = chunk.start + num_known - sequence.layout.num_prompt_tokens
        return SamplingRows(
            sequence_id=chunk.sequence_id, sampler=sequence.sampler, draft_token_ids=chunk.token_ids[num_known:]
        )
