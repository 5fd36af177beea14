"""Builds a rank's runner from its loaded shard: sizes and allocates the KV cache, and sets up CUDA graphs."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Vocabulary
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError, OutOfDeviceMemoryError
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig
from glimpse.engine.worker.cuda.backend import make_draw_tokens, why_not_draw_tokens
from glimpse.engine.worker.cuda.graphs import CudaGraphCapturer, DecodeGraphs, DecodeInputs, max_graphs, table_widths
from glimpse.engine.worker.execution.memory_profile import (
    DEFAULT_CPU_BYTES,
    MemoryUse,
    decode_step,
    end_of,
    foreign_bytes,
    free_bytes,
    graph_bytes,
    kv_cache_bytes,
    largest_step,
    measure,
    num_blocks_of,
)
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.mixers import LayerInputs
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import QuantizationScheme
from glimpse.engine.worker.layers.rotary import Rotation, rotary_axes
from glimpse.engine.worker.loading.adapters.adapter_store import RankAdapters
from glimpse.engine.worker.loading.quantization_choice import encoder_cache_bytes
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.native.library import Level, load_library
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.native.native_ops import NO_ADAPTERS
from glimpse.engine.worker.native.programs import DecodePrograms, RecordableDecoder, can_record
from glimpse.engine.worker.parallel.group import Group, ParallelOps, share_outputs
from glimpse.engine.worker.parallel.messages import Loaded
from glimpse.engine.worker.tensors.draws import DrawTokens
from glimpse.engine.worker.tensors.kv_cache import CachePlan, CacheShape, CacheSizes, KVCache
from glimpse.engine.worker.tensors.paged_plan import PagedPlan

_log = logging.getLogger(__name__)
_NO_SLOTS = torch.empty(0, dtype=torch.int64)
"""For steps that are recorded: they have those of the step that runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShard:
    """The model, or one rank's shard of it, as loaded from a checkpoint."""

    config: ModelConfig
    """Configuration of the whole model. The sizes of this shard are in `model.decoder.config`."""
    model: Model
    device: torch.device
    dtype: torch.dtype
    backend: ChosenBackend
    level: Level | None
    """Instruction set level of the native backend; None on other backends."""
    scheme: QuantizationScheme | None
    """How the decoder's weights are quantized; None if they are not."""
    vocabulary: Vocabulary
    adapters: RankAdapters

    @property
    def loaded(self) -> Loaded:
        """What ranks must have in common."""
        dtype = str(self.dtype).removeprefix("torch.")
        return Loaded(device=self.device.type, dtype=dtype, quantization=str(self.scheme or "none"))


def make_runner(
    config: EngineConfig, shard: LoadedShard, group: Group | None, *, on_progress: Callable[[str, float], None]
) -> ModelRunner:
    """Builds the runner of a loaded shard. With several ranks, all of them must call this together.

    Args:
        config: engine configuration.
        shard: the shard of this rank.
        group: the group of all ranks; None if there is one rank.
        on_progress: as for `load_core`.

    Raises:
        CheckpointError: there is not enough memory for the KV cache.
    """
    share = None
    if group is not None:
        shard.model.parallel = partial(ParallelOps, group=group)
        share = partial(
            share_outputs,
            group=group,
            row_width=shard.config.text.encoder_row_width,
            device=shard.device,
            dtype=shard.dtype,
        )
    make = partial(
        ModelRunner,
        model=shard.model,
        eos_token_ids=shard.config.eos_token_ids,
        suppressed_token_ids=shard.config.suppressed_token_ids,
        device=shard.device,
        dtype=shard.dtype,
        grammars=GrammarCompiler(shard.vocabulary),
        samples_on_device=uses_async_scheduling(config, shard.device),
        draw_tokens=choose_draw_tokens(shard.backend, shard.device),
        share_numbers=None if group is None else group.share,
    )
    num_bytes = config.kv_cache_bytes
    if num_bytes is None and shard.device.type == "cuda":
        on_progress("measuring the largest steps", 0.94)
        num_bytes = kv_cache_bytes(_measured_use(config, shard, make), utilization=config.gpu_memory_utilization)
    on_progress("allocating the KV cache", 0.95)
    sizes = _cache_sizes(shard, config, num_bytes or DEFAULT_CPU_BYTES, group)
    if not uses_cuda_graphs(config, shard):
        cache = _allocate(shard, config, sizes)
        recorded, of_mtp = make_programs(shard, cache), make_mtp_programs(shard, cache)
        return make(cache=cache, share_outputs=share, recorded=recorded, recorded_mtp=of_mtp and of_mtp.compute)
    cache = _allocate(shard, config, sizes._replace(num_blocks=sizes.num_blocks + 1))
    return make(cache=cache, recorded=make_graphs(config, shard, cache))


def choose_draw_tokens(backend: ChosenBackend, device: torch.device) -> DrawTokens | None:
    """Returns the kernels that draw tokens on the device; None, with a warning, if they cannot run."""
    if backend not in ("triton", "flashinfer"):
        return None
    if reason := why_not_draw_tokens(device):
        _log.warning("sampling with torch, which takes more launches: %s", reason)
        return None
    return make_draw_tokens()


def make_graphs(config: EngineConfig, shard: LoadedShard, cache: KVCache) -> DecodeGraphs:
    """Returns the CUDA graphs of the decode step, which are captured later. They use the last block of the cache."""
    decoder, ops = shard.model.decoder, shard.model.ops

    def compute(inputs: DecodeInputs) -> torch.Tensor:
        plan = PagedPlan(
            block_tables=inputs.block_tables,
            query_starts=inputs.query_starts,
            key_lengths=inputs.key_lengths,
            max_query_length=1,
        )
        return decoder.decode(inputs.token_ids, inputs.positions, inputs.slots, plan, cache, ops)

    window = min(decoder.config.max_position_embeddings, config.max_model_len or cache.num_blocks * cache.block_size)
    return DecodeGraphs(
        compute,
        CudaGraphCapturer(),
        max_sequences=min(config.max_sequences, config.max_batch_tokens),
        widths=table_widths(min(-(-window // cache.block_size), cache.num_blocks), cache.block_size),
        block_size=cache.block_size,
        scratch_slot=(cache.num_blocks - 1) * cache.block_size,
        vocab_size=decoder.config.vocab_size,
        device=shard.device,
    )


def make_programs(shard: LoadedShard, cache: KVCache) -> DecodePrograms | None:
    """Returns the recorded decode steps of a model on the native backend; None where its steps cannot be recorded.

    They end with hidden states if the model proposes draft tokens, which takes these. All-reduces between ranks are not
    recorded, nor are Gemma's output norms and sliding windows.
    """
    model, decoder = shard.model, shard.model.decoder

    def compute(hidden: torch.Tensor, rotation: Rotation, ops: Ops) -> torch.Tensor:
        hidden = decoder.decode_embedded(hidden, rotation, _NO_SLOTS, None, cache, ops)
        return hidden if model.mtp is not None else decoder.logits(hidden, ops)

    embeddings = decoder.lm_head if decoder.embed_tokens is None else decoder.embed_tokens
    return _programs(shard, cache, compute, embeddings, model.adapters)


def make_mtp_programs(shard: LoadedShard, cache: KVCache) -> DecodePrograms | None:
    """Does what `make_programs` does, for the layer of multi-token prediction."""
    if (mtp := shard.model.mtp) is None:
        return None

    def compute(joined: torch.Tensor, rotation: Rotation, ops: Ops) -> torch.Tensor:
        return mtp(joined, ops, LayerInputs(rotation, _NO_SLOTS, None), cache)

    return _programs(shard, cache, compute, None, NO_ADAPTERS)


def _programs(
    shard: LoadedShard,
    cache: KVCache,
    compute: Callable[[torch.Tensor, Rotation, Ops], torch.Tensor],
    embeddings: nn.Module | torch.Tensor | None,
    adapters: Adapters,
) -> DecodePrograms | None:
    decoder, text = shard.model.decoder, shard.model.decoder.config
    if shard.level is None or shard.model.parallel is not None or not decoder.is_recordable or not can_record(cache):
        return None
    assert isinstance(adapters, PackedAdapters)
    return DecodePrograms(
        RecordableDecoder(
            compute=compute,
            rotation=decoder.rotation,
            embeddings=embeddings,
            hidden_size=text.hidden_size,
            num_heads=text.num_heads,
            rotary_axes=rotary_axes(text.mrope_section, interleaved=text.mrope_interleaved),
        ),
        cache,
        adapters,
        library=load_library(),
        level=shard.level,
    )


def uses_cuda_graphs(config: EngineConfig, shard: LoadedShard) -> bool:
    """Whether decode steps run as CUDA graphs. Several ranks would have to capture the same graph at the same time, and
    graphs know of no states. Which experts a step computes is known on the host only once their scores are."""
    text = shard.model.decoder.config
    has_kernels = (
        shard.backend in ("triton", "flashinfer") and text.experts is None and text.states is None and not text.uses_mtp
    )
    return config.cuda_graphs and has_kernels and config.tensor_parallel_size == 1


def _measured_use(config: EngineConfig, shard: LoadedShard, make: Callable[..., ModelRunner]) -> MemoryUse:
    """Measures the GPU's memory while the largest steps run, with a cache that is just large enough for them.

    Raises:
        CheckpointError: the steps do not fit into the GPU's memory.
    """
    sizes = {
        "max_batch_tokens": config.max_batch_tokens,
        "max_sequences": config.max_sequences,
        "block_size": config.block_size,
    }
    medium = family_of(shard.config).largest_medium(shard.config, config.max_batch_tokens)
    plans = (largest_step(medium, **sizes), decode_step(**sizes))
    weights = torch.cuda.memory_allocated(shard.device)
    num_states = len(plans[0].chunks) if shard.config.text.states else 0
    cache = _allocate(shard, config, CacheSizes(num_blocks_of(plans[0]), num_states, 0))
    runner = make(cache=cache)
    steps: list[int] = []
    for plan in plans:
        try:
            steps.append(measure(partial(runner.execute, plan), shard.device))
        except OutOfDeviceMemoryError as error:
            raise CheckpointError(
                f"--max-batch-tokens {config.max_batch_tokens}: the GPU's memory does not fit the weights and"
                " a step of this size; lower it"
            ) from error
        runner.execute(end_of(plan))
    foreign, total = foreign_bytes(shard.device)
    graphs = 0
    if uses_cuda_graphs(config, shard):
        graphs = graph_bytes(
            partial(make_graphs, config, shard, cache),
            max_graphs(min(config.max_sequences, config.max_batch_tokens)),
            partial(free_bytes, shard.device),
        )
    del runner, cache
    torch.cuda.empty_cache()
    return MemoryUse(
        total=total,
        foreign=foreign,
        weights=weights,
        largest_step=steps[0],
        decode_step=steps[1],
        graphs=graphs,
        encoder_cache=encoder_cache_bytes(config, shard.config, shard.device, shard.dtype),
    )


def uses_async_scheduling(config: EngineConfig, device: torch.device) -> bool:
    """See `EngineOptions.launches_ahead`."""
    return config.launches_ahead(device.type)


def _cache_sizes(shard: LoadedShard, config: EngineConfig, num_bytes: int, group: Group | None) -> CacheSizes:
    """Returns how many blocks and states of the cache fit into `num_bytes`.

    Raises:
        CheckpointError: not a single block fits.
    """
    shape = CacheShape.of(shard.model.decoder.config, config.kv_cache_dtype)
    plan = CachePlan.of(config, shard.dtype, shard.device)
    sizes = shape.divide(num_bytes, plan)
    if group is not None:  # all ranks have the same
        sizes = CacheSizes(*map(group.min, sizes))
    if (why_not := shape.why_no_room(sizes, num_bytes, plan)) is not None:
        raise CheckpointError(why_not)
    return sizes


def _allocate(shard: LoadedShard, config: EngineConfig, sizes: CacheSizes) -> KVCache:
    try:
        return CacheShape.of(shard.model.decoder.config, config.kv_cache_dtype).allocate(
            sizes.num_blocks,
            config.block_size,
            shard.dtype,
            shard.device,
            num_states=sizes.num_states,
            num_sliding_blocks=sizes.num_sliding_blocks,
        )
    except (MemoryError, ValueError) as error:  # NumPy's ValueError: more bytes than addresses
        raise CheckpointError(
            f"'--kv-cache-bytes': expected what fits into memory, got {config.kv_cache_bytes}"
        ) from error
