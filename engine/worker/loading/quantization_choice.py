"""`--quantization auto`: the most accurate scheme of the decoder's weights that fits into memory.

Sizes are known before weights are read: those of the weights from models without values, the rest from the options.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import nn

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.lora import WEIGHTS_NAME
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig, EngineOptions
from glimpse.engine.worker.execution.memory_profile import DEFAULT_CPU_BYTES, foreign_bytes
from glimpse.engine.worker.loading.resolve import context_window
from glimpse.engine.worker.loading.weight_files import read_header
from glimpse.engine.worker.tensors.kv_cache import CachePlan, CacheShape
from glimpse.native.memory import available_memory, gib

Scheme: TypeAlias = Literal["int8", "int4"] | None

SCHEMES: tuple[Scheme, ...] = (None, "int8", "int4")
"""What can be chosen, most accurate first. fp8 is as large as int8 and less accurate."""

PROGRAM_BYTES = 512 << 20
"""What loading and serving take beside tensors of known sizes: libraries' own buffers, unused memory of allocators,
grammars, and the spare process."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What an engine needs, in bytes."""

    weights: Mapping[Scheme, int]
    """The weights of the whole model in each scheme that supports it, most accurate first."""
    dtype: torch.dtype
    """dtype of weights that are not quantized."""
    besides: int
    """All that is needed besides the weights."""

    def best_within(self, available: int) -> Scheme:
        """Returns the most accurate scheme that fits.

        Raises:
            CheckpointError: none fits.
        """
        for scheme, num_bytes in self.weights.items():
            if num_bytes + self.besides <= available:
                return scheme
        sizes = ", ".join(f"{gib(size)} in {self._title(scheme)}" for scheme, size in self.weights.items())
        raise CheckpointError(
            f"--quantization auto: the weights take {sizes}, and serving {gib(self.besides)} besides;"
            f" {gib(available)} are available. Free memory, lower --kv-cache-bytes, --encoder-cache-bytes,"
            " --max-batch-tokens or --max-sequences, or serve a smaller model"
        )

    def explain(self, chosen: Scheme, available: int) -> str:
        """Returns why a scheme was chosen, such as "int8: 7.9 GiB of weights in bfloat16 and … exceed …"."""
        last, verb = chosen, "fit into"
        for scheme in self.weights:
            if scheme == chosen:
                break
            last, verb = scheme, "exceed"
        return (
            f"{self._title(chosen)}: {gib(self.weights[last])} of weights in {self._title(last)} and"
            f" {gib(self.besides)} besides {verb} the {gib(available)} available"
        )

    def _title(self, scheme: Scheme) -> str:
        return scheme or str(self.dtype).removeprefix("torch.")


def choose_scheme(
    options: EngineConfig,
    config: ModelConfig,
    make_empty: Callable[[Scheme], nn.Module],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Scheme:
    """Returns the scheme for a checkpoint whose weights are not quantized, and logs why.

    Args:
        options: engine options, and the adapters that are loaded with the checkpoint.
        config: configuration of the model.
        make_empty: returns the model with this scheme on torch's meta device. Raises CheckpointError if the scheme does
            not support the model.
        device: where the model computes.
        dtype: dtype of weights that are not quantized, and of activations.

    Raises:
        CheckpointError: no scheme fits, the system does not say how much memory there is, there are several ranks, or
            an adapter cannot be read.
    """
    if options.tensor_parallel_size > 1:
        raise CheckpointError(
            "--quantization auto: expected none, int8, w8a8, int4 or fp8 with --tensor-parallel-size"
            f" {options.tensor_parallel_size}, because each rank would choose by the memory of its own device"
        )
    needs = memory_needs(options, config, make_empty, device=device, dtype=dtype)
    needs = replace(needs, besides=needs.besides + _adapter_bytes(options, dtype))
    available = available_bytes(options, device)
    chosen = needs.best_within(available)
    _log.info("--quantization auto: %s", needs.explain(chosen, available))
    return chosen


def _adapter_bytes(config: EngineConfig, dtype: torch.dtype) -> int:
    paths = config.lora_modules if config.restored_adapters is None else config.restored_adapters
    files = (Path(path, WEIGHTS_NAME) for path in paths.values())
    tensors = (tensor for file in files if file.is_file() for tensor in read_header(file).values())
    return dtype.itemsize * sum(prod(tensor.shape) for tensor in tensors)


def memory_needs(
    options: EngineOptions,
    config: ModelConfig,
    make_empty: Callable[[Scheme], nn.Module],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> MemoryNeeds:
    """Returns what serving a model needs in each scheme; the arguments are those of `choose_scheme`."""
    weights: dict[Scheme, int] = {}
    largest = 0
    for scheme in SCHEMES:
        try:
            sizes = [tensor.nbytes for tensor in _tensors(make_empty(scheme))]
        except CheckpointError:  # the scheme does not support matrices of these sizes
            continue
        weights[scheme], largest = sum(sizes), max(largest, *sizes)
    besides = (
        (options.kv_cache_bytes or DEFAULT_CPU_BYTES)
        + encoder_cache_bytes(options, config, device, dtype)
        + step_bytes(options, config, dtype)
        + largest  # is there twice while a backend packs it or converts it for a product
        + PROGRAM_BYTES
    )
    return MemoryNeeds(weights=weights, dtype=dtype, besides=besides)


def encoder_cache_bytes(options: EngineOptions, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> int:
    """Returns the memory for encoded media: what the options say, and at least enough for a context full of them.

    On a CPU a context is no longer than the KV cache. On a GPU the cache grows to what is left.
    """
    text = config.text
    if config.encoder is None:
        return 0
    window = context_window(options, text)
    if device.type == "cpu":
        num_bytes = options.kv_cache_bytes or DEFAULT_CPU_BYTES
        sizes = CacheShape.of(text, options.kv_cache_dtype).divide(num_bytes, CachePlan.of(options, dtype, device))
        window = min(window, sizes.num_blocks * options.block_size)
    return max(options.encoder_cache_bytes, window * text.encoder_row_width * dtype.itemsize)


def step_bytes(options: EngineOptions, config: ModelConfig, dtype: torch.dtype) -> int:
    """Estimates the largest step's memory: its activations in the decoder or in the encoder, and its logits."""
    text = config.text
    num_tokens = options.max_batch_tokens
    decoder = num_tokens * _row_values(text.hidden_size, text.intermediate_size)
    medium = family_of(config).largest_medium(config, num_tokens)
    encoder = medium.num_positions * _row_values(medium.width, medium.intermediate_size) if medium else 0
    num_logits = min(options.max_sequences, num_tokens) * text.vocab_size
    # Sampling copies the logits to adjust them, to divide them by the temperature, and for their softmax.
    return max(decoder, encoder) * dtype.itemsize + 4 * num_logits * torch.float32.itemsize


def available_bytes(options: EngineOptions, device: torch.device) -> int:
    """Returns the memory that the engine may take on a device.

    Raises:
        CheckpointError: the system does not say how much there is.
    """
    if device.type == "cuda":
        foreign, total = foreign_bytes(device)
        return max(0, int(options.gpu_memory_utilization * total) - foreign)
    available = available_memory(options.numa_node)
    if available is None:
        raise CheckpointError(
            "--quantization auto: this system does not say how much memory is available; use none, int8 or int4"
        )
    return available


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    return chain(model.parameters(), model.buffers())


def _row_values(width: int, intermediate_size: int) -> int:
    """Values that a layer holds at once for a token: about six of its width, and three of its MLP's."""
    return 6 * width + 3 * intermediate_size
