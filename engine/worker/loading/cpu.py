"""The threads and memory of an engine on a CPU, and the line in its log that says what computes there."""

import logging

import torch

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend, EngineOptions
from glimpse.engine.worker.loading.cpu_topology import bind_memory, bind_threads, default_num_threads, numa_nodes
from glimpse.engine.worker.loading.resolve import NativeAvailability
from glimpse.engine.worker.native.library import Level
from glimpse.native.processors import cpu_quota, usable_processors

_log = logging.getLogger(__name__)


def bind_to_node(node: int | None) -> None:
    """Binds this process to a NUMA node, if one is named. Call it before threads compute and memory is filled.

    Raises:
        CheckpointError: there is no such node, or this process may use none of its processors.
    """
    if node is None:
        return
    nodes = numa_nodes(usable_processors())
    if node not in nodes:
        known = f"one of {', '.join(map(str, nodes))}" if nodes else "nothing, since this system names no nodes"
        raise CheckpointError(f"'--numa-node': expected {known}, got {node}")
    bind_threads(nodes[node])
    try:
        bind_memory(node)
    except OSError as error:
        # Linux still prefers the memory of the node that a thread runs on.
        _log.warning("--numa-node binds the threads only, the system refuses to bind memory: %s", error)


def set_threads(options: EngineOptions) -> None:
    """Sets the number of threads that this rank computes with."""
    number = options.num_threads or default_num_threads(usable_processors(), cpu_quota())
    torch.set_num_threads(max(1, number // options.num_local_ranks))


def num_threads(options: EngineOptions) -> int:
    """Returns the number of compute threads of all ranks of this node, after `set_threads`."""
    return torch.get_num_threads() * options.num_local_ranks


def log_cpu(
    options: EngineOptions,
    *,
    dtype: torch.dtype,
    backend: ChosenBackend,
    level: Level | None,
    native: NativeAvailability,
) -> None:
    """Logs what computes. A warning if it is torch although nobody asked for it."""
    kernels = "torch" if level is None else f"native kernels, {level.title}"
    line = f"cpu: {kernels}, {str(dtype).removeprefix('torch.')}, {_threads(options)}"
    if backend == "torch" and options.backend == "auto":
        _log.warning("%s; the native kernels are faster: %s", line, native.why_not)
    else:
        _log.info("%s", line)


def _threads(options: EngineOptions) -> str:
    number = num_threads(options)
    text = f"{number} thread{'s' * (number > 1)}"
    num_nodes = len(numa_nodes(usable_processors()))
    if num_nodes > 1:
        return f"{text} on {num_nodes} NUMA nodes (--numa-node keeps threads and memory on one)"
    return text if options.numa_node is None else f"{text} on NUMA node {options.numa_node}"
