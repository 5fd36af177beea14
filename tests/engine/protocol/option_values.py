"""A value other than the default for each of the engine's options, to follow it through an entry point."""

from collections.abc import Mapping
from dataclasses import fields

from glimpse.engine.protocol.config import EngineOptions

OPTIONS = tuple(field.name for field in fields(EngineOptions))

OTHER_VALUES: Mapping[str, object] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "backend": "torch",
    "cpu_level": "avx2",
    "quantization": "int8",
    "max_model_len": 77,
    "block_size": 16,
    "kv_cache_bytes": 3 << 20,
    "kv_cache_dtype": "int8",
    "gpu_memory_utilization": 0.5,
    "encoder_cache_bytes": 5 << 20,
    "max_batch_tokens": 99,
    "max_decode_slowdown": 1.5,
    "max_loras": 3,
    "max_lora_rank": 128,
    "max_sequences": 7,
    "max_waiting": 8,
    "prefix_caching": False,
    "cuda_graphs": False,
    "speculative": "ngram",
    "num_speculative_tokens": 3,
    "tensor_parallel_size": 2,
    "nnodes": 2,
    "node_rank": 1,
    "master_addr": "127.0.0.1",
    "master_port": 29600,
    "num_threads": 3,
    "numa_node": 1,
}
