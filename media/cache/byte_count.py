"""How many bytes are in use, in one process or in several that have a limit together."""

import mmap
import os
from typing import Self


class ByteCount:
    """Bytes that are in use."""

    def __init__(self) -> None:
        self.own = 0
        """In this process."""

    @property
    def total(self) -> int:
        """In all processes."""
        return self.own

    def add(self, num_bytes: int) -> None:
        """Counts bytes in use, or with a negative number, bytes that are free again."""
        self.own += num_bytes


class SharedByteCounts:
    """Numbers in memory that several processes map: a column for each limit, a row for each process. Linux only.

    Each process writes its own row only. Two that count at the same moment may exceed a limit by what one of them
    counts.
    """

    def __init__(self, descriptor: int, *, num_processes: int) -> None:
        """Maps the memory that `create` returned, here or in the parent process."""
        self._num_processes = num_processes
        self._numbers = memoryview(mmap.mmap(descriptor, 0)).cast("q")

    @classmethod
    def create(cls, *, num_processes: int, num_limits: int) -> tuple[Self, int]:
        """Returns counts of 0, and a descriptor of their memory for other processes."""
        descriptor = os.memfd_create("byte counts")
        os.ftruncate(descriptor, 8 * num_processes * num_limits)
        return cls(descriptor, num_processes=num_processes), descriptor

    def count(self, limit: int, process: int) -> "SharedByteCount":
        """Returns the count of one process against one limit, both from 0."""
        first = limit * self._num_processes
        return SharedByteCount(self._numbers[first : first + self._num_processes], process)

    def clear(self, process: int) -> None:
        """A process is gone: it uses nothing any more."""
        for index in range(process, len(self._numbers), self._num_processes):
            self._numbers[index] = 0


class SharedByteCount(ByteCount):
    """Bytes in use of this process, where others see them."""

    def __init__(self, numbers: memoryview, process: int) -> None:
        self._numbers = numbers
        self._process = process
        super().__init__()

    @property
    def total(self) -> int:
        return sum(self._numbers)

    def add(self, num_bytes: int) -> None:
        super().add(num_bytes)
        self._numbers[self._process] = self.own
