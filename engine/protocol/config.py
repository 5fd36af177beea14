"""The engine's options: each one's name, type, range, default and meaning, written once.

The server's flags and environment variables and `LLM`'s keyword arguments are made from `EngineOptions`; its docstrings
are their help texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypedDict

from annotated_types import Ge, Gt, Le

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16"]
Speculative = Literal["auto", "off", "ngram", "mtp"]
Backend = Literal["auto", "native", "torch", "triton", "flashinfer"]
ChosenBackend = Literal["native", "torch", "triton", "flashinfer"]
CpuLevel = Literal[
    "auto",
    "avx2",
    "avx_vnni",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx",
    "neon",
    "neon_dotprod",
    "neon_i8mm",
    "neon_bf16",
]
Quantization = Literal["none", "auto", "int8", "w8a8", "int4", "fp8"]
KvCacheDType = Literal["auto", "int8"]
ChosenQuantization = Literal["none", "int8", "w8a8", "int4", "fp8"]
_LARGEST = (1 << 63) - 1
"""Larger integers are no message to the engine."""
Count = Annotated[int, Ge(1), Le(_LARGEST)]
ByteCount = Annotated[int, Ge(0), Le(_LARGEST)]
TcpPort = Annotated[int, Ge(1), Le(65535)]

DEFAULT_MASTER_PORT = 29500


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine serves a checkpoint. None as a default stands for a value that the engine chooses at load."""

    device: Device = "auto"
    """Where the model computes. auto: CUDA if there is a device, else the CPU."""
    dtype: DType = "auto"
    """Type of weights and activations. auto: on CUDA the checkpoint's own; on a CPU bfloat16
    if the native kernels can run or the processor has bfloat16 instructions, else float32."""
    backend: Backend = "auto"
    """Kernels that compute. auto: on a CPU native, if the kernels can be compiled;
    on CUDA triton; torch if these cannot run. flashinfer is used only if it is requested."""
    cpu_level: CpuLevel = "auto"
    """Instruction set level of the native kernels. auto: the fastest of this processor. A slower one is for tests and
    comparisons; one that the processor lacks is refused."""
    quantization: Quantization = "none"
    """Quantizes the decoder's weights at load. auto: the first of none, int8 and int4 with which the engine fits into
    the memory that is available; the log says why. int8: half the memory, about 0.6 of the time to decode on a CPU.
    w8a8: int8 for CPUs with VNNI that answers prompts sooner. fp8: half the memory, for GPUs with FP8 arithmetic;
    slow elsewhere. int4: a quarter of the memory. AWQ, GPTQ and FP8 need no option."""
    max_model_len: Count | None = None
    """Context window in tokens, prompt and answer together. Default: the checkpoint's, as far as the KV cache holds it;
    a larger value is lowered to that."""
    block_size: Count = 32
    """Tokens in a block of the KV cache."""
    kv_cache_bytes: Count | None = None
    """Memory for keys and values, on each GPU. Default: 1 GiB on a CPU; on a GPU what gpu_memory_utilization leaves
    after the largest steps were tried."""
    kv_cache_dtype: KvCacheDType = "auto"
    """Type of keys and values. auto: that of activations. int8: about half the memory of bfloat16, so twice the tokens,
    with a scale for each head of a token; answers change a little."""
    gpu_memory_utilization: Annotated[float, Gt(0), Le(1)] = 0.9
    """Share of a GPU's memory to use, weights included, if kv_cache_bytes is not given; quantization auto keeps to it
    in any case."""
    encoder_cache_bytes: ByteCount = 256 << 20
    """Memory for encoded images, videos and audio. The media of one prompt always fit."""
    max_batch_tokens: Count = 2048
    """Most tokens computed in one step. Longer prompts are computed in chunks."""
    max_decode_slowdown: Annotated[float, Ge(1)] = 2.35
    """How much longer than a decode step a step may take because it also computes prompts, as a factor. A smaller value
    keeps running answers steadier; a larger one starts new answers sooner. On a GPU, 512 prompt tokens are allowed in
    any case."""
    max_sequences: Count = 256
    """Most sequences computed in one step."""
    max_waiting: Count = 4096
    """Most requests that wait for the engine; one more is refused as overloaded (429)."""
    prefix_caching: bool = True
    """Reuse keys and values of prompts that begin alike."""
    cuda_graphs: bool = True
    """Record decode steps on a GPU and replay them. Without, each of their kernels is launched by itself."""
    speculative: Speculative = "auto"
    """Speculative decoding. ngram: propose draft tokens from what followed the same tokens before, and verify them in
    one step. Answers are the same, often sooner. auto: do so on a CPU while recent tokens and steps say that it pays;
    on CUDA only with tensor_parallel_size, because it keeps steps from being launched ahead. mtp: verify what the
    checkpoint's own layer of multi-token prediction proposes, while that pays."""
    num_speculative_tokens: Annotated[int, Ge(1), Le(7)] | None = None
    """Most draft tokens of a sequence in a step. Default: 7, and with mtp, where each takes the time of a layer and of
    the output head, 1."""
    tensor_parallel_size: Count = 1
    """Processes that share each step, on GPUs one each; on a CPU they share its threads. See docs/gpu.md."""
    nnodes: Count = 1
    """Machines that share each step; tensor_parallel_size counts the processes of all of them. Each machine is told the
    same options, and node_rank. Their network must be trusted. See docs/gpu.md."""
    node_rank: Annotated[int, Ge(0)] = 0
    """Number of this machine among the nodes. Node 0 serves; the others run `glimpse serve` and compute for it."""
    master_addr: str | None = None
    """Address of node 0, where it listens for the other nodes. Required if nnodes is above 1."""
    master_port: TcpPort = DEFAULT_MASTER_PORT
    """Port at which node 0 listens for the other nodes."""
    max_loras: Count = 8
    """Most LoRA adapters at a time. All are in memory."""
    max_lora_rank: Count = 64
    """Highest rank that LoRA adapters may have."""
    num_threads: Annotated[int, Ge(1), Le(1024)] | None = None
    """Compute threads on a CPU, of all processes together. Default: one for each physical performance core that the
    engine may use; if these are more than two and no others are free, one less, for the front end."""
    numa_node: Annotated[int, Ge(0), Le(1023)] | None = None
    """NUMA node, by its number, whose processors and memory the engine uses. Linux only. Default: all nodes."""

    @property
    def num_local_ranks(self) -> int:
        """Ranks of each node."""
        return self.tensor_parallel_size // self.nnodes

    def launches_ahead(self, device: str) -> bool:
        """Whether the next step is prepared and launched while the current one runs on such a device.

        Not on a CPU, where a step uses all cores; not if every repetition is drafted, because draft tokens depend on
        the tokens before them; and not with several ranks, because the other ranks get the tokens that rank 0 samples
        from the host.
        """
        return device == "cuda" and self.speculative not in ("ngram", "mtp") and self.tensor_parallel_size == 1

    def may_draft(self, device: str) -> bool:
        """Whether steps on such a device may have draft tokens."""
        return self.speculative != "off" and not self.launches_ahead(device)

    @property
    def why_not_together(self) -> str | None:
        """Why the options cannot be honored together; None if they can."""
        if self.speculative == "off" and self.num_speculative_tokens is not None:
            return "'--num-speculative-tokens': expected with '--speculative' auto, ngram or mtp, got --speculative off"
        if self.nnodes == 1:
            if self.master_addr is not None or self.master_port != DEFAULT_MASTER_PORT:
                return "'--master-addr' and '--master-port': expected with '--nnodes' of 2 or more, got --nnodes 1"
        elif self.master_addr is None:
            return f"'--master-addr': expected the address of node 0 with --nnodes {self.nnodes}, got none"
        elif self.tensor_parallel_size % self.nnodes:
            num_ranks = self.tensor_parallel_size
            return f"'--tensor-parallel-size': expected a multiple of --nnodes {self.nnodes}, got {num_ranks}"
        if self.node_rank >= self.nnodes:
            return f"'--node-rank': expected less than --nnodes {self.nnodes}, got {self.node_rank}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(EngineOptions):
    """What the engine is told at its start: the options, and the checkpoint."""

    model_path: str
    """Folder of the checkpoint."""
    companions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folders of checkpoints that hold parts of the model, by the field of `config.json` that names each."""
    lora_modules: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folders of LoRA adapters, by the name that requests give."""
    allowed_lora_path: str = ""
    """Folder below which adapters may be loaded at run time. Empty: nowhere."""
    restored_adapters: Mapping[str, str] | None = None
    """Folders of the adapters that the engine before this one had, by name, which take the place of `lora_modules`. One
    that cannot be loaded any more is left out. None: there was none before."""


class OfflineOptions(TypedDict, total=False):
    """The engine's options that `LLM` takes: all but `max_waiting`, because its queue is the caller's own list.

    Type checkers read them from here; a test holds names and types equal to `EngineOptions`.
    """

    device: Device
    dtype: DType
    backend: Backend
    cpu_level: CpuLevel
    quantization: Quantization
    max_model_len: int | None
    block_size: int
    kv_cache_bytes: int | None
    kv_cache_dtype: KvCacheDType
    gpu_memory_utilization: float
    encoder_cache_bytes: int
    max_batch_tokens: int
    max_decode_slowdown: float
    max_sequences: int
    prefix_caching: bool
    cuda_graphs: bool
    speculative: Speculative
    num_speculative_tokens: int | None
    tensor_parallel_size: int
    nnodes: int
    node_rank: int
    master_addr: str | None
    master_port: int
    max_loras: int
    max_lora_rank: int
    num_threads: int | None
    numa_node: int | None
