"""The engine's composition root: from settings and a checkpoint's folder to a core that answers. Knows every part."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from glimpse.engine.config import Backend, ChosenBackend, Device, DType, EngineConfig
from glimpse.engine.cuda.backend import make_cuda_ops, why_not_flashinfer, why_not_triton
from glimpse.engine.errors import CheckpointError
from glimpse.engine.execution.runner import ModelRunner
from glimpse.engine.grammar.matcher import Vocabulary
from glimpse.engine.layers.fp8 import why_not_fp8
from glimpse.engine.layers.quantized import (
    QuantizationScheme,
    is_fp8,
    process_weights_after_loading,
    quantize_linears,
    resolve_scheme,
)
from glimpse.engine.loading.build_runner import LoadedShard, make_runner, uses_async_scheduling
from glimpse.engine.loading.weight_conversion import translation
from glimpse.engine.loading.weights import load_weights
from glimpse.engine.model_config import ModelConfig, load_model_config
from glimpse.engine.models.families import Model, checkpoint_name, make_model
from glimpse.engine.native.backend import use_native, why_not_native
from glimpse.engine.parallel.distributed_runner import ParallelRunner
from glimpse.engine.parallel.ranks import Ranks
from glimpse.engine.parallel.shards import shard_config, shard_tensor
from glimpse.engine.protocol import Ready
from glimpse.engine.scheduling.core import Core, Runner
from glimpse.engine.scheduling.ngram_proposer import MAX_DRAFT_TOKENS
from glimpse.engine.text.tokenizer import load_tokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """An engine that is ready to serve."""

    core: Core
    ready: Ready
    """What the engine says of itself."""
    model: ModelConfig


def load_core(
    config: EngineConfig, *, on_progress: Callable[[str, float], None], on_lost: Callable[[], None] = lambda: None
) -> LoadedEngine:
    """Loads a checkpoint and builds the engine around it.

    Args:
        config: what to serve and how.
        on_progress: called with what is being done and the share of the whole that is done.
        on_lost: called once when one of several ranks has ended, from any thread; each step fails from then on.

    Raises:
        CheckpointError: the checkpoint cannot be served, or not with these settings on this machine.
        EngineError: one of several ranks ended meanwhile.
    """
    started = time.perf_counter()
    if config.tensor_parallel_size == 1:
        part = load_shard(config, rank=0, on_progress=on_progress)
        runner = own = make_runner(config, part, None, on_progress=on_progress)
    else:
        part, own, runner = _load_ranks(config, on_progress, on_lost)
    num_blocks = own.num_blocks
    window = part.config.text.max_position_embeddings
    max_model_len = min(window, config.max_model_len or window, num_blocks * config.block_size)
    core = _make_core(config, part, runner, own, max_model_len)
    ready = Ready(
        device=str(part.device),
        dtype=str(part.dtype).removeprefix("torch."),
        backend=part.backend,
        tensor_parallel_size=config.tensor_parallel_size,
        quantization=str(part.scheme or "none"),
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=config.block_size,
        load_seconds=time.perf_counter() - started,
    )
    on_progress("ready", 1.0)
    return LoadedEngine(core=core, ready=ready, model=part.config)


def load_shard(config: EngineConfig, *, rank: int, on_progress: Callable[[str, float], None]) -> LoadedShard:
    """Loads what a rank holds of a checkpoint; all of it if it is the only one.

    Raises:
        CheckpointError: as `load_core`.
    """
    path, num_ranks = Path(config.model_path), config.tensor_parallel_size
    on_progress("reading the configuration", 0.0)
    model_config = load_model_config(path)
    device = assign_device(resolve_device(config.device), rank=rank, num_ranks=num_ranks)
    dtype = resolve_dtype(config.dtype, stored=model_config.dtype, device=device)
    if device.type == "cpu":
        num_threads = config.num_threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(max(1, num_threads // num_ranks))
    scheme = resolve_scheme(config.quantization, model_config.quantization)
    backend = resolve_backend(
        config.backend,
        device=device,
        dtype=dtype,
        head_dim=model_config.text.head_dim,
        scheme=scheme,
        on_progress=on_progress,
    )
    model = load_model(path, model_config, device, dtype, on_progress, scheme=scheme, rank=rank, num_ranks=num_ranks)
    match backend:
        case "native":
            on_progress("packing the weights", 0.92)
            model.ops = use_native(model)
        case "triton" | "flashinfer":
            model.ops = make_cuda_ops(backend, num_heads=model.decoder.config.num_heads, device=device)
        case "torch":
            pass
    return LoadedShard(
        config=model_config,
        model=model,
        device=device,
        dtype=dtype,
        backend=backend,
        scheme=scheme,
        vocabulary=load_vocabulary(path, model_config.text.vocab_size),
    )


def _load_ranks(
    config: EngineConfig, on_progress: Callable[[str, float], None], on_lost: Callable[[], None]
) -> tuple[LoadedShard, ModelRunner, ParallelRunner]:
    """Rank 0's part and runner, and the runner that is all ranks."""
    ranks = Ranks(config, on_lost=on_lost)
    try:
        part = load_shard(config, rank=0, on_progress=on_progress)
        group = ranks.join(part.device)
        own = make_runner(config, part, group, on_progress=on_progress)
        ranks.wait_until_joined()
    except BaseException:
        ranks.end()
        raise
    return part, own, ParallelRunner(own, ranks)


def assign_device(device: torch.device, *, rank: int, num_ranks: int) -> torch.device:
    """The device of one of several ranks, and this process's own from now on.

    Raises:
        CheckpointError: there are fewer GPUs than ranks.
    """
    if num_ranks < 1:
        raise CheckpointError(f"--tensor-parallel-size {num_ranks}: at least 1")
    if num_ranks == 1 or device.type == "cpu":
        return device
    num_devices = torch.cuda.device_count()
    if num_ranks > num_devices:
        raise CheckpointError(f"--tensor-parallel-size {num_ranks}: this machine has {num_devices} CUDA devices")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def resolve_device(device: Device) -> torch.device:
    """The device to compute on.

    Raises:
        CheckpointError: CUDA is asked for and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise CheckpointError("--device cuda: this machine has no CUDA device that torch can use")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def resolve_dtype(dtype: DType, *, stored: str, device: torch.device) -> torch.dtype:
    """The dtype of weights and activations; `stored` is the checkpoint's own."""
    if dtype != "auto":
        return getattr(torch, dtype)
    if device.type == "cuda":
        # Checkpoints in float16, as AWQ's and GPTQ's are, were trained in bfloat16 and may leave the other's range.
        return torch.float32 if stored == "float32" else torch.bfloat16
    return torch.bfloat16 if _cpu_multiplies_bfloat16() else torch.float32


_BACKENDS_BY_SPEED: Mapping[str, tuple[ChosenBackend, ...]] = {"cuda": ("flashinfer", "triton"), "cpu": ("native",)}
"""By type of device: what is faster than torch, the fastest first."""


def resolve_backend(
    backend: Backend,
    *,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    scheme: QuantizationScheme | None = None,
    on_progress: Callable[[str, float], None],
) -> ChosenBackend:
    """What carries out the model's operations. Compiles the native kernels if they are wanted and not yet compiled.

    Raises:
        CheckpointError: the backend that is asked for cannot be had, or the device cannot compute in FP8.
    """
    if is_fp8(scheme) and (why := why_not_fp8(device)):
        raise CheckpointError(f"fp8 weights: {why}")
    why_not: Mapping[ChosenBackend, Callable[[], str | None]] = {
        "flashinfer": lambda: why_not_flashinfer(device, dtype, head_dim),
        "triton": lambda: why_not_triton(device),
        "native": lambda: (
            "the native backend has no FP8 arithmetic; int8 is what it is fast with"
            if is_fp8(scheme)
            else why_not_native(device, dtype, lambda stage: on_progress(stage, 0.0))
        ),
        "torch": lambda: None,
    }
    if backend != "auto":
        if reason := why_not[backend]():
            raise CheckpointError(f"--backend {backend}: {reason}")
        return backend
    reason = None
    for best in _BACKENDS_BY_SPEED.get(device.type, ()):
        reason = why_not[best]()
        if reason is None:
            return best
    if reason and (device.type == "cuda" or dtype is torch.bfloat16):
        _log.warning("computing with plain torch, which is slower: %s", reason)
    return "torch"


def _cpu_multiplies_bfloat16() -> bool:
    cpu_info = Path("/proc/cpuinfo")
    if not cpu_info.exists():
        return False
    # x86 names two extensions that do, Arm one.
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(cpu_info.read_text().split())


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
) -> Model:
    """The model with the checkpoint's weights, those of the decoder's layers in a quantized scheme if one is given; or
    the part of it that a rank holds.

    Raises:
        CheckpointError: the weights or the preprocessor's configuration are missing or do not fit the model, or the
            model cannot be parted over so many ranks.
    """
    with torch.device("meta"):
        model = make_model(path, replace(config, text=shard_config(config.text, num_ranks)))
    model = model.to(dtype=dtype)
    if scheme is not None:
        # An encoder is read once a picture, not once a token; the head would add a fifth to the error of logits.
        quantize_linears(model.decoder.layers, scheme, scale_dtype=getattr(torch, config.dtype))
    model = model.to_empty(device=device).requires_grad_(False)
    wanted = dict(model.named_weights())
    load_weights(
        path,
        wanted,
        device=device,
        checkpoint_name=checkpoint_name(config),
        ignored=lambda name: name.endswith(("lm_head.weight", "rotary_emb.inv_freq")),
        translate=translation(scheme, wanted),
        part=partial(shard_tensor, text=config.text, rank=rank, num_ranks=num_ranks),
        on_progress=lambda fraction: on_progress("reading the weights", 0.9 * fraction),
    )
    process_weights_after_loading(model.decoder.layers)
    return model


def load_vocabulary(path: Path, vocab_size: int) -> Vocabulary:
    """What the model's tokens say; models may have more of them than the tokenizer.

    Raises:
        CheckpointError: the tokenizer is missing or of an unknown kind.
    """
    tokenizer = load_tokenizer(path)
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token_id) for token_id in range(vocab_size)],
        special_ids=sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size),
    )


def _make_core(
    config: EngineConfig,
    part: LoadedShard,
    runner: Runner,
    own: ModelRunner,
    max_model_len: int,
) -> Core:
    """A core for a runner, which is rank 0's own or has it in itself."""
    text = part.config.text
    return Core(
        runner=runner,
        num_blocks=own.num_blocks,
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_waiting=config.max_waiting,
        eos_token_ids=part.config.eos_token_ids,
        encoder_bytes_per_token=text.hidden_size * part.dtype.itemsize,
        encoder_cache_bytes=config.encoder_cache_bytes,
        prefix_caching=config.prefix_caching,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        max_decode_slowdown=config.max_decode_slowdown,
        max_draft_tokens=MAX_DRAFT_TOKENS if config.speculative == "ngram" else 0,
        async_scheduling=uses_async_scheduling(config, part.device),
        prepare=own.prepare,
        compile_grammar=own.compile,
    )
