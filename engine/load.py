"""The engine's composition root: from settings and a checkpoint's folder to a core that answers. Knows every part."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from engine.config import Backend, Device, DType, EngineConfig, ModelConfig, load_model_config
from engine.core import Core
from engine.errors import CheckpointError
from engine.grammar import GrammarCompiler, Vocabulary
from engine.guesses import MAX_GUESSES
from engine.kv_cache import KVCache, allocate_kv_cache, block_bytes
from engine.layers.linear import quantize
from engine.models.families import Model, make_model, published_name
from engine.native.backend import use_native, why_not_native
from engine.protocol import Ready
from engine.runner import ModelRunner
from engine.text.tokenizer import load_tokenizer
from engine.weights import load_weights

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """An engine that is ready to serve."""

    core: Core
    ready: Ready
    """What the engine says of itself."""
    model: ModelConfig


def load_core(config: EngineConfig, *, on_progress: Callable[[str, float], None]) -> LoadedEngine:
    """Loads a checkpoint and builds the engine around it.

    Args:
        config: what to serve and how.
        on_progress: called with what is being done and the share of the whole that is done.

    Raises:
        CheckpointError: the checkpoint cannot be served, or not with these settings on this machine.
    """
    started = time.perf_counter()
    path = Path(config.model_path)
    on_progress("reading the configuration", 0.0)
    model_config = load_model_config(path)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, stored=model_config.dtype, device=device)
    if device.type == "cpu":
        torch.set_num_threads(config.num_threads or len(os.sched_getaffinity(0)))
    backend = resolve_backend(config.backend, device=device, dtype=dtype, on_progress=on_progress)
    model = load_model(path, model_config, device, dtype, on_progress)
    if config.quantization == "int8":
        on_progress("quantizing the weights", 0.9)
        # An encoder is read once a picture, not once a token; the head would add a fifth to the error of logits.
        quantize(model.decoder.layers)
    if backend == "native":
        on_progress("packing the weights", 0.92)
        model.ops = use_native(model)
    on_progress("allocating the KV cache", 0.95)
    cache = _allocate(model_config, config.block_size, config.kv_cache_bytes, device, dtype)
    num_blocks = cache.num_blocks
    window = model_config.text.max_position_embeddings
    max_model_len = min(window, config.max_model_len or window, num_blocks * config.block_size)
    runner = ModelRunner(
        model=model,
        cache=cache,
        eos_token_ids=model_config.eos_token_ids,
        device=device,
        dtype=dtype,
        grammars=GrammarCompiler(load_vocabulary(path, model_config.text.vocab_size)),
    )
    core = _make_core(config, model_config, runner, num_blocks, max_model_len, dtype)
    ready = Ready(
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        backend=backend,
        quantization=config.quantization,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=config.block_size,
        load_seconds=time.perf_counter() - started,
    )
    on_progress("ready", 1.0)
    return LoadedEngine(core=core, ready=ready, model=model_config)


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
        return getattr(torch, stored)
    return torch.bfloat16 if _cpu_multiplies_bfloat16() else torch.float32


def resolve_backend(
    backend: Backend, *, device: torch.device, dtype: torch.dtype, on_progress: Callable[[str, float], None]
) -> Literal["native", "torch"]:
    """What carries out the model's operations. Compiles the native kernels if they are wanted and not yet compiled.

    Raises:
        CheckpointError: the native backend is asked for and cannot be had.
    """
    if backend == "torch":
        return "torch"
    reason = why_not_native(device, dtype, lambda stage: on_progress(stage, 0.0))
    if reason is None:
        return "native"
    if backend == "native":
        raise CheckpointError(f"--backend native: {reason}")
    if device.type == "cpu" and dtype is torch.bfloat16:
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
) -> Model:
    """The model with the checkpoint's weights.

    Raises:
        CheckpointError: the weights or the preprocessor's configuration are missing or do not fit the model.
    """
    with torch.device("meta"):
        model = make_model(path, config)
    model = model.to(dtype=dtype).to_empty(device=device).requires_grad_(False)
    load_weights(
        path,
        dict(model.stored_tensors()),
        published_name=published_name(config),
        ignored=lambda name: name.endswith(("lm_head.weight", "rotary_emb.inv_freq")),
        on_progress=lambda fraction: on_progress("reading the weights", 0.9 * fraction),
    )
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
    model_config: ModelConfig,
    runner: ModelRunner,
    num_blocks: int,
    max_model_len: int,
    dtype: torch.dtype,
) -> Core:
    return Core(
        runner=runner,
        num_blocks=num_blocks,
        block_size=config.block_size,
        max_model_len=max_model_len,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        max_waiting=config.max_waiting,
        eos_token_ids=model_config.eos_token_ids,
        encoder_bytes_per_token=model_config.text.hidden_size * dtype.itemsize,
        encoder_cache_bytes=config.encoder_cache_bytes,
        prefix_caching=config.prefix_caching,
        vocab_size=model_config.text.vocab_size,
        hidden_size=model_config.text.hidden_size,
        max_decode_slowdown=config.max_decode_slowdown,
        max_guesses=MAX_GUESSES if config.speculative == "ngram" else 0,
    )


def _allocate(
    config: ModelConfig, block_size: int, kv_cache_bytes: int, device: torch.device, dtype: torch.dtype
) -> KVCache:
    text = config.text
    bytes_of_block = block_bytes(
        num_layers=text.num_layers,
        block_size=block_size,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        dtype=dtype,
    )
    num_blocks = kv_cache_bytes // bytes_of_block
    if num_blocks < 1:
        raise CheckpointError(f"--kv-cache-bytes {kv_cache_bytes}: one block of the KV cache takes {bytes_of_block}")
    return allocate_kv_cache(
        num_layers=text.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        dtype=dtype,
        device=device,
    )
