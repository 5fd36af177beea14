"""What is to be served, and how: the engine's settings and the checkpoint's own `config.json`.

The front end reads from here what it must know of a model to make a prompt; the engine builds the model from it. Knows
no torch and no transformers.
"""

from dataclasses import dataclass
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16"]
Speculative = Literal["off", "ngram"]
Backend = Literal["auto", "native", "torch", "triton", "flashinfer"]
ChosenBackend = Literal["native", "torch", "triton", "flashinfer"]
Quantization = Literal["none", "int8", "int4", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine serves a checkpoint."""

    model_path: str
    """Folder of the checkpoint."""
    device: Device = "auto"
    """auto: CUDA where there is a device, else the CPU."""
    dtype: DType = "auto"
    """auto: the checkpoint's own on CUDA; on a CPU bfloat16 where it multiplies it natively, else float32."""
    backend: Backend = "auto"
    """auto: on a CPU native where it computes in bfloat16 and the kernels can be compiled, else torch; on CUDA
    FlashInfer where it is installed, else our own kernels in Triton, else torch."""
    quantization: Quantization = "none"
    """Of the decoder layers' weights, made at load. int8: with a scale for each output feature; fp8: likewise, and
    activations are rounded too; int4: with a scale for each group of inputs. none: as the checkpoint has them."""
    max_model_len: int | None = None
    """Lowers the checkpoint's context window; None keeps it, as far as the KV cache holds it."""
    block_size: int = 32
    """Tokens in a KV block."""
    kv_cache_bytes: int | None = None
    """Memory for keys and values, on each GPU. None: on CUDA what is left when the largest steps were tried, of
    `gpu_memory_utilization`; on a CPU 1 GiB."""
    gpu_memory_utilization: float = 0.9
    """The share of a GPU's memory that is used where `kv_cache_bytes` does not say it; more than 0, at most 1."""
    encoder_cache_bytes: int = 256 << 20
    """Memory for encoder outputs; at least one prompt's worth is always allowed."""
    max_batch_tokens: int = 2048
    """The most tokens computed in one step; longer prompts are computed in chunks."""
    max_decode_slowdown: float = 2.35
    """The longest a step may take because of prompts that come in while answers run, in steps without any; at least 1.
    Smaller keeps answers steadier, larger brings new ones sooner. Pictures are encoded whole, one in a step at least.
    """
    max_sequences: int = 256
    """The most sequences computed in one step."""
    max_waiting: int = 4096
    """The most requests waiting for admission; one more is refused as OVERLOADED."""
    prefix_caching: bool = True
    cuda_graphs: bool = True
    """Where kernels of our own compute on a GPU, decode steps are recorded and replayed."""
    speculative: Speculative = "off"
    """ngram: guesses what an answer says next from what followed the same tokens before, and checks several at once."""
    tensor_parallel_size: int = 1
    """Ranks that share each step: GPUs, one process each. On a CPU the processes share its threads."""
    num_threads: int | None = None
    """Compute threads on the CPU, of all ranks together; None takes as many as the process may run on."""
