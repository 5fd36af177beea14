"""Looks whether this machine can serve a checkpoint, without its weights.

`python -m glimpse.engine.worker.loading.check_serving` reads a `CheckRequest` as JSON and writes a `ServingCheck`.

It builds the model without values and resolves the options as loading does, so that both come to the same result. Only
the memory of the largest step is an estimate. A program of its own, because `glimpse check` loads no torch.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch
from torch import nn

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.lora import read_adapters
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.execution.memory_profile import DEFAULT_CPU_BYTES
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.mlp import ExpertsMLP
from glimpse.engine.worker.layers.quantized import QuantizationScheme
from glimpse.engine.worker.loading.adapters.load_adapters import AdapterLoader
from glimpse.engine.worker.loading.build_model import empty_model, model_as_computed, with_mtp, with_stored_head
from glimpse.engine.worker.loading.check_messages import (
    CheckRequest,
    ComputingReport,
    Context,
    Decoding,
    Memory,
    ServingCheck,
)
from glimpse.engine.worker.loading.cpu import bind_to_node, num_threads, set_threads
from glimpse.engine.worker.loading.quantization_choice import (
    MemoryNeeds,
    Scheme,
    available_bytes,
    choose_scheme,
    memory_needs,
)
from glimpse.engine.worker.loading.resolve import (
    Computing,
    assign_device,
    context_window,
    resolve_computing,
    resolve_device,
)
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.kv_cache import CachePlan, CacheShape
from glimpse.native.memory import gib

_READ_BYTES = 512 << 20
"""Much larger than the caches of most machines."""
_NUM_READS = 4


def main() -> None:
    """Answers the request on standard input."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckRequest)
    sys.stdout.buffer.write(msgspec.json.encode(check_serving(request, on_progress=_report)))


def _report(stage: str, _fraction: float) -> None:
    print(stage, file=sys.stderr, flush=True)


def check_serving(request: CheckRequest, *, on_progress: Callable[[str, float], None]) -> ServingCheck:
    """Looks whether this machine can serve a checkpoint."""
    try:
        return _check(request, on_progress)
    except CheckpointError as error:
        return ServingCheck(problems=[str(error)])


def _check(request: CheckRequest, on_progress: Callable[[str, float], None]) -> ServingCheck:
    config, path = request.config, Path(request.config.model_path)
    if (why_not := config.why_not_together) is not None:
        raise CheckpointError(why_not)
    model = with_stored_head(load_model_config(path, config.companions), request.tensors)
    if config.speculative == "mtp":
        model = with_mtp(model, request.tensors)
    tensors = None
    if request.tensors is not None:
        tensors = check_tensors(request.tensors, path, model, companions=request.companion_tensors)
    device = assign_device(resolve_device(config.device), rank=0, num_ranks=config.num_local_ranks)
    bind_to_node(config.numa_node)
    if device.type == "cpu":
        set_threads(config)
    computing = resolve_computing(config, model, device, on_progress)
    build = partial(
        model_as_computed,
        path,
        model,
        computing,
        num_ranks=config.tensor_parallel_size,
        stored=request.tensors,
    )
    scheme, shard, memory, problems = _fit(config, model, computing, build)
    if tensors is not None and not tensors.fits:
        problems.append("the checkpoint does not have the tensors that config.json describes")
    context, no_room = _context(config, shard, memory, computing)
    problems += [] if no_room is None or problems else [no_room]
    return ServingCheck(
        problems=problems,
        num_parameters=_num_parameters(path, model),
        computing=_describe(config, computing, scheme),
        memory=memory,
        context=context,
        decoding=_decoding(config, shard, device, memory),
        tensors=tensors,
    )


def _fit(
    config: EngineConfig,
    model: ModelConfig,
    computing: Computing,
    build: Callable[[QuantizationScheme | None], Model],
) -> tuple[QuantizationScheme | None, Model, Memory, list[str]]:
    """Returns the scheme of the weights, a rank's shard, the memory that serving takes, and why it does not fit.

    Raises:
        CheckpointError: the model cannot be built, or an adapter does not fit it.
    """
    available = _available(config, computing.device)
    needs_of = partial(memory_needs, config, model, device=computing.device, dtype=computing.dtype)
    choices = None if model.quantization else needs_of(build)
    scheme, problems = computing.scheme, list[str]()
    if config.quantization == "auto" and choices is not None:
        try:
            scheme = choose_scheme(config, model, build, device=computing.device, dtype=computing.dtype)
        except CheckpointError as error:
            smallest: list[Scheme] = [None, *choices.weights]
            scheme, problems = smallest[-1], [str(error)]
    shard = build(scheme)
    shard.adapters = Adapters(config.max_loras)
    needs = needs_of(lambda _: shard)
    loader = AdapterLoader(shard, model.text, computing.dtype, num_ranks=config.tensor_parallel_size)
    loader.load_all(read_adapters(config))
    memory = _memory(config, needs, choices, computing.device, available, shard.adapters.num_bytes)
    if not problems and available is not None and memory.needed > available:
        problems.append(_does_not_fit(config, memory, available))
    return scheme, shard, memory, problems


def _memory(
    config: EngineConfig,
    needs: MemoryNeeds,
    choices: MemoryNeeds | None,
    device: torch.device,
    available: int | None,
    adapters: int,
) -> Memory:
    kv_cache = config.kv_cache_bytes or DEFAULT_CPU_BYTES
    # A node's ranks on a CPU share its memory; `build` returns the shard of one.
    ranks = config.num_local_ranks if device.type == "cpu" else 1
    weights, adapters, besides = ranks * needs.weights[None], ranks * adapters, needs.besides - kv_cache
    if config.kv_cache_bytes is None and device.type == "cuda" and available is not None:
        kv_cache = max(available - weights - adapters - besides, 0)
    return Memory(
        weights=weights,
        kv_cache=ranks * kv_cache,
        besides=besides,
        adapters=adapters,
        available=available,
        weights_in={} if choices is None else {str(name or "none"): size for name, size in choices.weights.items()},
    )


def _does_not_fit(config: EngineConfig, memory: Memory, available: int) -> str:
    smaller = [
        name
        for name, size in memory.weights_in.items()
        if memory.needed - memory.weights + size * config.num_local_ranks <= available
    ]
    if smaller:
        advice = f"--quantization {smaller[0]} fits"
    elif min(memory.weights_in.values(), default=memory.weights) > available:
        advice = "serve a smaller model"
    else:
        advice = "free memory, or lower --kv-cache-bytes, --max-batch-tokens or --max-sequences"
    return (
        f"memory: the weights, the KV cache and the largest step take {gib(memory.needed)},"
        f" {gib(available)} are available; {advice}"
    )


def _available(config: EngineConfig, device: torch.device) -> int | None:
    try:
        return available_bytes(config, device)
    except CheckpointError:
        return None


def _num_parameters(path: Path, model: ModelConfig) -> int:
    whole = empty_model(path, model, torch.float32, None, scale_dtype=torch.float32, num_ranks=1)
    return sum(tensor.numel() for tensor in whole.parameters())


def _describe(config: EngineConfig, computing: Computing, scheme: QuantizationScheme | None) -> ComputingReport:
    is_cpu = computing.device.type == "cpu"
    return ComputingReport(
        device=str(computing.device),
        backend=computing.backend,
        cpu_level="" if computing.level is None else computing.level.title,
        dtype=str(computing.dtype).removeprefix("torch."),
        quantization=str(scheme or "none"),
        num_threads=num_threads(config) if is_cpu else 0,
        why_not_native=computing.native.why_not if is_cpu and computing.backend == "torch" else None,
    )


def _context(config: EngineConfig, model: Model, memory: Memory, computing: Computing) -> tuple[Context, str | None]:
    """Returns the context window, and why the KV cache has no room for any."""
    trained = model.decoder.config.max_position_embeddings
    shape, ranks = CacheShape.of(model.decoder.config, config.kv_cache_dtype), config.num_local_ranks
    plan = CachePlan.of(config, computing.dtype, computing.device)
    num_bytes = memory.kv_cache // ranks
    sizes = shape.divide(num_bytes, plan)
    tokens = sizes.num_blocks * config.block_size
    window = min(context_window(config, model.decoder.config), tokens)
    context = Context(
        window=window,
        trained=trained,
        kv_cache_tokens=tokens,
        num_states=sizes.num_states,
        sliding_tokens=sizes.num_sliding_blocks * config.block_size,
        state_bytes=ranks * shape.state_bytes(computing.dtype),
        sequence_bytes=ranks * shape.sequence_bytes(window, plan, sizes),
        needed_bytes=ranks * shape.needed_bytes(trained, plan),
    )
    return context, shape.why_no_room(sizes, num_bytes, plan)


def _kv_bytes(config: EngineConfig, model: Model, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values in all layers."""
    return CacheShape.of(model.decoder.config, config.kv_cache_dtype).block_bytes(1, dtype)


def read_bytes(model: Model) -> int:
    """Returns the bytes of weights that a step reads for one sequence: of experts, those that a token chooses."""
    decoder = model.decoder
    drafts = 0 if model.mtp is None else _bytes(model.mtp)
    # A step reads single rows of embeddings, unless those are the output head too.
    embedding = 0 if decoder.embed_tokens is None else decoder.embed_tokens.nbytes
    embedding += 0 if decoder.layer_embeddings is None else decoder.layer_embeddings.table.nbytes
    mixtures = [module for module in decoder.modules() if isinstance(module, ExpertsMLP)]
    idle = sum(
        (mixture.config.num_experts - mixture.config.num_chosen) * _bytes(mixture.experts[0]) for mixture in mixtures
    )
    return _bytes(decoder) + drafts - embedding - idle


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


def _decoding(config: EngineConfig, shard: Model, device: torch.device, memory: Memory) -> Decoding:
    ranks = config.num_local_ranks if device.type == "cpu" else 1
    return Decoding(
        weight_bytes=ranks * read_bytes(shard),
        kv_bytes=ranks * _kv_bytes(config, shard, shard.decoder.norm.weight.dtype),
        read_rate=None if (memory.available or 0) < 2 * _READ_BYTES else _read_rate(device),
    )


def _read_rate(device: torch.device) -> float:
    """Measures the bytes per second that torch reads with the engine's threads: the best of several runs."""
    words = torch.ones(_READ_BYTES // 8, dtype=torch.int64, device=device)
    seconds: list[float] = []
    for _ in range(_NUM_READS):
        begun = time.perf_counter()
        words.sum().item()
        seconds.append(time.perf_counter() - begun)
    return _READ_BYTES / min(seconds)


if __name__ == "__main__":
    main()
