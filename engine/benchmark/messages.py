"""What the programs that measure the machine tell `glimpse bench`. Independent of torch."""

import msgspec


class LimitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's limits."""

    num_threads: int
    """Threads that read and computed: those of an engine."""
    read_bytes_per_second: float
    flops_per_second: float
    """Operations per second; a multiply-add is two."""
    units: str
    """What multiplied, such as "float32 FMA, 512 bits"."""


class StepShare(msgspec.Struct, frozen=True, kw_only=True):
    """How near a step of the engine is to the machine's limit."""

    level: str
    """Instruction set level, or the backend if it is not native."""
    weights: str
    """Type or quantization of the weights."""
    step: str
    """Such as "decode 1 x 512": one sequence of 512 tokens."""
    milliseconds: float
    """Median."""
    share: float
    """Least time, by the machine's read rate or the level's arithmetic units, in this time."""
