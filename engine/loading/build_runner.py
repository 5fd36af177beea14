"""From what a rank has loaded to its runner: memory for keys and values, recordings of steps, what runs beside what.

Knows the settings and the parts; how weights come into memory is known elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch

from glimpse.engine.config import ChosenBackend, EngineConfig
from glimpse.engine.cuda.graphs import CudaRecorder, DecodeGraphs, DecodeInputs
from glimpse.engine.errors import CheckpointError, OutOfDeviceMemoryError
from glimpse.engine.execution.memory_profile import (
    DEFAULT_CPU_BYTES,
    MemoryUse,
    decode_step,
    end_of,
    foreign_bytes,
    kv_cache_bytes,
    largest_step,
    measure,
    num_blocks_of,
)
from glimpse.engine.execution.runner import ModelRunner
from glimpse.engine.grammar.matcher import GrammarCompiler, Vocabulary
from glimpse.engine.layers.quantized import QuantizationScheme
from glimpse.engine.model_config import ModelConfig
from glimpse.engine.models.families import Model
from glimpse.engine.parallel.encoder_exchange import share_outputs
from glimpse.engine.parallel.group import Group
from glimpse.engine.parallel.sharded_ops import ParallelOps
from glimpse.engine.tensors.kv_cache import KVCache, allocate_kv_cache, block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShard:
    """What one rank has in memory: a model, or its part of one."""

    config: ModelConfig
    """The checkpoint's. The sizes of this part are `model.decoder.config`."""
    model: Model
    device: torch.device
    dtype: torch.dtype
    backend: ChosenBackend
    scheme: QuantizationScheme | None
    """Of the decoder's quantized weights; None if they are not."""
    vocabulary: Vocabulary


def make_runner(
    config: EngineConfig, part: LoadedShard, group: Group | None, *, on_progress: Callable[[str, float], None]
) -> ModelRunner:
    """The runner of a loaded part.

    Args:
        config: what to serve and how.
        part: of this rank.
        group: of all ranks, which call this together; None where there is one.
        on_progress: as for `load_core`.

    Raises:
        CheckpointError: there is not enough memory for keys and values.
    """
    share = None
    if group is not None:
        part.model.decoder_ops = ParallelOps(part.model.ops, group)
        share = partial(
            share_outputs,
            group=group,
            hidden_size=part.config.text.hidden_size,
            device=part.device,
            dtype=part.dtype,
        )
    make = partial(
        ModelRunner,
        model=part.model,
        eos_token_ids=part.config.eos_token_ids,
        device=part.device,
        dtype=part.dtype,
        grammars=GrammarCompiler(part.vocabulary),
        chooses_on_device=uses_async_scheduling(config, part.device),
    )
    num_bytes = config.kv_cache_bytes
    if num_bytes is None and part.device.type == "cuda":
        on_progress("measuring the largest steps", 0.94)
        num_bytes = kv_cache_bytes(_measured_use(config, part, make), utilization=config.gpu_memory_utilization)
    on_progress("allocating the KV cache", 0.95)
    num_blocks = _num_blocks(part, config.block_size, num_bytes or DEFAULT_CPU_BYTES, group)
    if not uses_cuda_graphs(config, part):
        return make(cache=_allocate(part, config.block_size, num_blocks), share_outputs=share)
    cache = _allocate(part, config.block_size, num_blocks + 1)
    return make(cache=cache, graphs=make_graphs(config, part, cache))


def make_graphs(config: EngineConfig, part: LoadedShard, cache: KVCache) -> DecodeGraphs:
    """Recordings of a part's decode steps, to be made when there is time. The last block of the cache is theirs."""
    make_plan = import_module("glimpse.engine.cuda.attention").CudaAttentionPlan  # imports Triton, which is an extra
    decoder, ops = part.model.decoder, part.model.ops

    def compute(inputs: DecodeInputs) -> torch.Tensor:
        plan = make_plan(
            block_tables=inputs.block_tables,
            query_starts=inputs.query_starts,
            key_lengths=inputs.key_lengths,
            max_query_length=1,
        )
        return decoder.decode(inputs.token_ids, inputs.positions, inputs.slots, plan, cache, ops)

    window = min(decoder.config.max_position_embeddings, config.max_model_len or cache.num_blocks * cache.block_size)
    return DecodeGraphs(
        compute,
        CudaRecorder(),
        max_sequences=min(config.max_sequences, config.max_batch_tokens),
        max_blocks=min(-(-window // cache.block_size), cache.num_blocks),
        scratch_slot=(cache.num_blocks - 1) * cache.block_size,
        vocab_size=decoder.config.vocab_size,
        device=part.device,
    )


def uses_cuda_graphs(config: EngineConfig, part: LoadedShard) -> bool:
    """Decode steps are recorded. Several ranks would have to record the same at the same time."""
    return config.cuda_graphs and part.backend in ("triton", "flashinfer") and config.tensor_parallel_size == 1


def _measured_use(config: EngineConfig, part: LoadedShard, make: Callable[..., ModelRunner]) -> MemoryUse:
    """The GPU's memory while the largest steps are tried, on a cache that holds no more than these.

    Raises:
        CheckpointError: they do not fit.
    """
    sizes = {
        "max_batch_tokens": config.max_batch_tokens,
        "max_sequences": config.max_sequences,
        "block_size": config.block_size,
    }
    plans = (largest_step(part.config.encoder, **sizes), decode_step(**sizes))
    weights = torch.cuda.memory_allocated(part.device)
    runner = make(cache=_allocate(part, config.block_size, num_blocks_of(plans[0])))
    steps: list[int] = []
    for plan in plans:
        try:
            steps.append(measure(partial(runner.execute, plan), part.device))
        except OutOfDeviceMemoryError as error:
            raise CheckpointError(
                f"--max-batch-tokens {config.max_batch_tokens}: beside the weights there is no memory for such a step"
            ) from error
        runner.execute(end_of(plan))
    foreign, total = foreign_bytes(part.device)
    text = part.config.text
    window = min(text.max_position_embeddings, config.max_model_len or text.max_position_embeddings)
    del runner
    torch.cuda.empty_cache()
    return MemoryUse(
        total=total,
        foreign=foreign,
        weights=weights,
        largest_step=steps[0],
        decode_step=steps[1],
        encoder_cache=max(config.encoder_cache_bytes, window * text.hidden_size * part.dtype.itemsize),
    )


def uses_async_scheduling(config: EngineConfig, device: torch.device) -> bool:
    """The next step is prepared and launched beside the current one.

    On a CPU nothing runs beside a step, which has all cores. Guesses need the tokens before them. Of several ranks each
    would need the tokens that rank 0 samples before these reach the host.
    """
    return device.type == "cuda" and config.speculative == "off" and config.tensor_parallel_size == 1


def _num_blocks(part: LoadedShard, block_size: int, num_bytes: int, group: Group | None) -> int:
    """How many blocks so much memory holds.

    Raises:
        CheckpointError: not one.
    """
    text = part.model.decoder.config
    bytes_of_block = block_bytes(
        num_layers=text.num_layers,
        block_size=block_size,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        dtype=part.dtype,
    )
    num_blocks = num_bytes // bytes_of_block
    if group is not None:
        num_blocks = group.min(num_blocks)  # a block is on every rank or on none
    if num_blocks < 1:
        raise CheckpointError(f"--kv-cache-size {num_bytes}: one block of the KV cache takes {bytes_of_block} bytes")
    return num_blocks


def _allocate(part: LoadedShard, block_size: int, num_blocks: int) -> KVCache:
    text = part.model.decoder.config
    return allocate_kv_cache(
        num_layers=text.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        dtype=part.dtype,
        device=part.device,
    )
