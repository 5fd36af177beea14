"""What the program that measures the machine tells `glimpse bench`. Independent of torch."""

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
