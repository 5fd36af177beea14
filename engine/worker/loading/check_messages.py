"""Messages between `glimpse check` and the program that looks at the machine for it. Independent of torch."""

import msgspec

from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.weight_files import StoredTensor


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks whether this machine can serve a checkpoint."""

    config: EngineConfig
    """Configuration, whose folder needs no weights."""
    tensors: dict[str, StoredTensor] | None
    """The checkpoint's tensors by name; None if they, or those of a companion, are not known yet."""
    companion_tensors: dict[str, StoredTensor] = {}
    """Tensors of its companions, their names with the companion's prefix."""


class ComputingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What would compute."""

    device: str
    backend: str
    cpu_level: str
    """Instruction set level of the native kernels; empty on other backends."""
    dtype: str
    quantization: str
    """"none", or the scheme of the decoder's weights."""
    num_threads: int
    """0 on a GPU."""
    why_not_native: str | None = None
    """Why torch computes on a CPU although the native kernels are faster."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on the device; with several ranks on GPUs, on each."""

    weights: int
    kv_cache: int
    besides: int
    """The largest step, encoded media, libraries and what loading needs."""
    adapters: int = 0
    available: int | None
    """None if the system does not say."""
    weights_in: dict[str, int]
    """The weights in each scheme that `--quantization auto` chooses from; empty for quantized checkpoints."""

    @property
    def needed(self) -> int:
        return self.weights + self.kv_cache + self.adapters + self.besides


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The context window, in tokens."""

    window: int
    """What a request may use."""
    trained: int
    """The checkpoint's own."""
    kv_cache_tokens: int
    """Tokens that the KV cache holds, of all sequences together."""
    num_states: int = 0
    """States of sequences and of snapshots that it holds, where layers keep them."""
    state_bytes: int = 0
    """Size of a state."""
    sliding_tokens: int = 0
    """Tokens that it holds for sliding layers, which keep windows alone; 0 if these keep all."""
    sequence_bytes: int
    """What a sequence of `window` tokens takes of the KV cache."""
    needed_bytes: int
    """Size of a KV cache that holds `trained` tokens."""


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """what bounds the speed of one answer: each of its tokens reads the weights of the decoder."""

    weight_bytes: int
    """Read for each token, on each device."""
    kv_bytes: int
    """Read for each token in the context, besides."""
    read_rate: float | None
    """Bytes per second, measured. None if memory is too short to measure."""

    @property
    def tokens_per_second(self) -> float | None:
        """An upper bound at the start of a context."""
        return None if self.read_rate is None else self.read_rate / self.weight_bytes


class TensorCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint's tensors, compared with those that the model loads."""

    expected: int
    """How many the model loads."""
    missing: list[str]
    unexpected: list[str]
    unfit: list[str]
    """A sentence for each tensor of another shape or type."""

    @property
    def fits(self) -> bool:
        return not (self.missing or self.unexpected or self.unfit)


class ServingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `CheckRequest`. What could not be found out is None."""

    problems: list[str]
    """Why the checkpoint cannot be served here; empty if it can."""
    num_parameters: int | None = None
    """Number of unquantized weights."""
    computing: ComputingReport | None = None
    memory: Memory | None = None
    context: Context | None = None
    decoding: Decoding | None = None
    tensors: TensorCheck | None = None
    """None if the tensors are not known yet."""
