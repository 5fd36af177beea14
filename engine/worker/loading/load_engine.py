"""The engine's composition root: loads a checkpoint and assembles the core from the configuration."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.grammar.matcher import Vocabulary
from glimpse.engine.checkpoint.lora import read_adapters
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.core.adapter_table import SPARE_SLOTS, AdapterTable
from glimpse.engine.core.core import Core
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.ngram_proposer import MAX_DRAFT_TOKENS
from glimpse.engine.core.request import ModelSpec
from glimpse.engine.core.step_pipeline import Runner
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig
from glimpse.engine.protocol.messages import Ready
from glimpse.engine.worker.cuda.backend import make_cuda_ops
from glimpse.engine.worker.execution.grammar_watcher import GrammarWatcher
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.quantized import (
    QuantizationScheme,
    kept_blocks,
    process_weights_after_loading,
    quantizes_head,
)
from glimpse.engine.worker.loading.adapters.adapter_store import EngineAdapters, RankAdapters
from glimpse.engine.worker.loading.adapters.load_adapters import AdapterLoader
from glimpse.engine.worker.loading.build_model import empty_model, model_as_computed, with_mtp, with_stored_head
from glimpse.engine.worker.loading.build_runner import LoadedShard, make_runner, uses_async_scheduling
from glimpse.engine.worker.loading.compressed_weights import restoring
from glimpse.engine.worker.loading.cpu import bind_to_node, log_cpu, num_threads, set_threads
from glimpse.engine.worker.loading.quantization_choice import choose_scheme
from glimpse.engine.worker.loading.resolve import (
    assign_device,
    context_window,
    resolve_computing,
    resolve_device,
    unused_options,
)
from glimpse.engine.worker.loading.weight_conversion import make_converter
from glimpse.engine.worker.loading.weight_files import checkpoint_digest, read_headers
from glimpse.engine.worker.loading.weights import load_weights
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.native.library import Level, multiplies_tiles
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.parallel.distributed_runner import ParallelRunner
from glimpse.engine.worker.parallel.ranks import Ranks
from glimpse.engine.worker.parallel.shards import shard_config, shard_tensor

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """A loaded engine, ready to serve."""

    core: Core
    ready: Ready
    """The engine's properties, as reported to the front end."""
    model: ModelConfig


def load_core(
    config: EngineConfig,
    *,
    on_progress: Callable[[str, float], None],
    on_rank_failure: Callable[[], None] = lambda: None,
) -> LoadedEngine:
    """Loads a checkpoint and builds the engine around it.

    Args:
        config: engine configuration.
        on_progress: called with a description of the current stage and the fraction of loading that is complete.
        on_rank_failure: called once, from any thread, when one of several ranks has exited; every later step fails.

    Raises:
        CheckpointError: the checkpoint cannot be served, or not with this configuration on this machine.
        EngineError: one of several ranks exited while loading.
    """
    started = time.perf_counter()
    if (why_not := config.why_not_together) is not None:
        raise CheckpointError(why_not)
    if config.node_rank > 0:
        raise CheckpointError(
            f"'--node-rank': expected 0 here, got {config.node_rank}; other nodes run `glimpse serve`"
        )
    if config.tensor_parallel_size == 1:
        shard, ranks = load_shard(config, rank=0, on_progress=on_progress), None
        runner = local_runner = make_runner(config, shard, None, on_progress=on_progress)
    else:
        shard, local_runner, ranks = _load_ranks(config, on_progress, on_rank_failure)
        runner = ParallelRunner(local_runner, ranks)
    adapters = AdapterTable(
        EngineAdapters(shard.adapters, ranks),
        digests=shard.model.adapters.digests,
        paths=config.lora_modules,
        max_adapters=config.max_loras,
    )
    adapters.restore(config.restored_adapters or {})
    num_blocks = local_runner.num_blocks
    max_model_len = min(context_window(config, shard.config.text), num_blocks * config.block_size)
    core = _make_core(config, shard, runner, local_runner, max_model_len, adapters)
    ready = Ready(
        device=str(shard.device),
        dtype=str(shard.dtype).removeprefix("torch."),
        backend=shard.backend,
        cpu_level="" if shard.level is None else shard.level.title,
        num_threads=num_threads(config) if shard.device.type == "cpu" else 0,
        tensor_parallel_size=config.tensor_parallel_size,
        quantization=str(shard.scheme or "none"),
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        num_states=local_runner.num_states,
        num_sliding_blocks=local_runner.num_sliding_blocks,
        block_size=config.block_size,
        adapters=adapters.loaded,
        load_seconds=time.perf_counter() - started,
    )
    on_progress("ready", 1.0)
    return LoadedEngine(core=core, ready=ready, model=shard.config)


def load_shard(config: EngineConfig, *, rank: int, on_progress: Callable[[str, float], None]) -> LoadedShard:
    """Loads a rank's shard of a checkpoint: all of it if there is one rank.

    Raises:
        CheckpointError: as for `load_core`.
    """
    path, num_ranks = Path(config.model_path), config.tensor_parallel_size
    on_progress("reading the configuration", 0.0)
    model_config = load_model_config(path, config.companions).within(config.max_model_len)
    _check_step_size(config, model_config)
    if rank == 0 and model_config.unapplied_fields:
        _log.warning("generation_config.json: not applied: %s", ", ".join(model_config.unapplied_fields))
    adapters = read_adapters(config) if config.restored_adapters is None else []
    if config.speculative == "mtp":
        model_config = with_mtp(model_config, read_headers(path))
    if model_config.is_embedding_model:
        model_config = with_stored_head(model_config, read_headers(path))
    num_local = config.num_local_ranks
    device = assign_device(resolve_device(config.device), rank=rank % max(num_local, 1), num_ranks=num_local)
    bind_to_node(config.numa_node)
    if device.type == "cpu":
        set_threads(config)
    computing = resolve_computing(config, model_config, device, on_progress)
    dtype, backend, level = computing.dtype, computing.backend, computing.level
    if rank == 0 and (unused := unused_options(config, computing)):
        _log.warning("no effect on %s with %s kernels: %s", device.type, backend, ", ".join(unused))
    scheme = computing.scheme
    if config.quantization == "auto" and scheme is None:
        make_empty = partial(model_as_computed, path, model_config, computing, num_ranks=num_ranks)
        scheme = choose_scheme(config, model_config, make_empty, device=device, dtype=dtype)
    if device.type == "cpu" and rank == 0:
        log_cpu(config, dtype=dtype, backend=backend, level=level, native=computing.native)
    model = load_model(
        path,
        model_config,
        device,
        dtype,
        on_progress,
        scheme=scheme,
        rank=rank,
        num_ranks=num_ranks,
        backend=backend,
        level=level,
    )
    loader = AdapterLoader(model, model_config.text, dtype, rank=rank, num_ranks=num_ranks)
    if quantizes_head(scheme, backend):
        model.decoder.quantize_head()
    match backend:
        case "native":
            on_progress("packing the weights", 0.92)
            model.ops = use_native(model, level, dtype)
        case "triton" | "flashinfer":
            model.ops = make_cuda_ops(backend, num_heads=model.decoder.config.num_heads, device=device)
        case "torch":
            pass
    model.adapters = (PackedAdapters if backend == "native" else Adapters)(config.max_loras + SPARE_SLOTS)
    loader.load_all(adapters)
    return LoadedShard(
        config=model_config,
        model=model,
        device=device,
        dtype=dtype,
        backend=backend,
        level=level,
        scheme=scheme,
        vocabulary=load_vocabulary(path, model_config.text.vocab_size),
        adapters=RankAdapters(config, loader, model.adapters),
    )


def _check_step_size(config: EngineConfig, model: ModelConfig) -> None:
    """
    Raises:
        CheckpointError: an image could wait forever for a step that has room for all of its tokens.
    """
    run, least = model.text.bidirectional_run, model.text.bidirectional_run + config.max_sequences
    if run and config.max_batch_tokens < least:
        raise CheckpointError(
            f"'--max-batch-tokens': expected at least {least}, since the model computes the {run} tokens of an image in"
            f" one step, beside a token of each of {config.max_sequences} sequences (--max-sequences), got"
            f" {config.max_batch_tokens}"
        )


def _load_ranks(
    config: EngineConfig, on_progress: Callable[[str, float], None], on_rank_failure: Callable[[], None]
) -> tuple[LoadedShard, ModelRunner, Ranks]:
    """Returns rank 0's shard, its local runner, and the other ranks."""
    # Refused before a process is started for each rank.
    text = load_model_config(Path(config.model_path), config.companions).text
    shard_config(text, max(config.tensor_parallel_size, 1))
    digest = checkpoint_digest([config.model_path, *config.companions.values()]) if config.nnodes > 1 else ""
    ranks = Ranks(config, digest=digest, on_rank_failure=on_rank_failure)
    try:
        shard = load_shard(config, rank=0, on_progress=on_progress)
        on_progress("waiting for the other ranks", 0.93)
        group = ranks.join(shard.device, shard.loaded)
        local_runner = make_runner(config, shard, group, on_progress=on_progress)
        ranks.wait_until_joined()
    except BaseException:
        ranks.end()
        raise
    return shard, local_runner, ranks


def load_model(
    path: Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    on_progress: Callable[[str, float], None],
    *,
    scheme: QuantizationScheme | None = None,
    rank: int = 0,
    num_ranks: int = 1,
    backend: ChosenBackend = "torch",
    level: Level | None = None,
) -> Model:
    """Returns a rank's shard of the model with its weights loaded. `backend` is the one that will compute with it, at
    this instruction set level.

    Raises:
        CheckpointError: as for `empty_model`, or the weights are missing or do not fit the model.
    """
    model = empty_model(
        path,
        config,
        dtype,
        scheme,
        scale_dtype=getattr(torch, config.dtype),
        num_ranks=num_ranks,
        kept=kept_blocks(scheme, backend, multiplies_tiles=multiplies_tiles(level, dtype)),
        stored=None if scheme is None or isinstance(scheme, str) else read_headers(path),
    )

    # `Module.to_empty` calls `empty_like`, which imports sympy for tensors without values.
    def allocate(weight: torch.Tensor) -> torch.Tensor:
        return torch.empty(weight.shape, dtype=weight.dtype, device=device)

    model._apply(allocate)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    model.requires_grad_(False)
    destinations = dict(model.named_weights())
    load_weights(
        path,
        destinations,
        device=device,
        renamed_prefixes=model.renamed_prefixes,
        ignored=model.is_unused,
        split=restoring(config.fp8_blocks, partial(model.split_weight, text=config.text)),
        convert=make_converter(scheme, destinations, partial(model.arrange, text=config.text)),
        shard=partial(shard_tensor, text=config.text, rank=rank, num_ranks=num_ranks),
        on_progress=lambda fraction: on_progress("reading the weights", 0.9 * fraction),
        companions=config.companions,
    )
    process_weights_after_loading(model)
    return model


def load_vocabulary(path: Path, vocab_size: int) -> Vocabulary:
    """Returns the bytes of each of the model's tokens; models may have more tokens than their tokenizer.

    Raises:
        CheckpointError: the tokenizer is missing or not supported.
    """
    tokenizer = load_tokenizer(path)
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(vocab_size)],
        special_ids=sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size),
    )


def _make_core(
    config: EngineConfig,
    shard: LoadedShard,
    runner: Runner,
    local_runner: ModelRunner,
    max_model_len: int,
    adapters: AdapterTable,
) -> Core:
    """Returns a core for `runner`, which is rank 0's local runner or wraps it."""
    text = shard.config.text
    async_scheduling = uses_async_scheduling(config, shard.device)
    return Core(
        runner=runner,
        model=ModelSpec(
            vocab_size=text.vocab_size,
            encoder_row_width=text.encoder_row_width,
            eos_token_ids=shard.config.eos_token_ids,
            bad_phrases=shard.config.bad_phrases,
            bidirectional_runs=text.bidirectional_run > 0,
            bidirectional_prompt=text.bidirectional_prompt,
            has_output_head=shard.config.has_output_head,
            adapters=adapters.digests,
            encoding=shard.model.adapters.encoding,
        ),
        limits=SchedulerLimits(
            num_blocks=local_runner.num_blocks,
            block_size=config.block_size,
            max_model_len=max_model_len,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            encoder_bytes_per_row=text.encoder_row_width * shard.dtype.itemsize,
            encoder_cache_bytes=config.encoder_cache_bytes,
            prefix_caching=config.prefix_caching,
            max_decode_slowdown=config.max_decode_slowdown,
            uses_gpu=shard.device.type == "cuda",
            max_draft_tokens=_max_draft_tokens(config) if config.speculative != "off" and not async_scheduling else 0,
            uses_mtp=text.uses_mtp,
            adaptive_drafts=config.speculative != "ngram",
            num_states=local_runner.num_states,
            num_sliding_blocks=local_runner.num_sliding_blocks,
            window=text.sliding.window if text.sliding else 0,
        ),
        max_waiting=config.max_waiting,
        adapters=adapters,
        async_scheduling=async_scheduling,
        prepare=local_runner.prepare,
        compile_grammar=local_runner.compile,
        watch_trigger=lambda grammar: GrammarWatcher(grammar, shard.vocabulary.tokens),
    )


def _max_draft_tokens(config: EngineConfig) -> int:
    return config.num_speculative_tokens or (1 if config.speculative == "mtp" else MAX_DRAFT_TOKENS)
