"""The values of a GGUF file's metadata that belong to its architecture, checked."""

from typing import Any, NoReturn

import numpy as np

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.errors import CheckpointError

_MAX_SIZE = 1 << 30


class Keys:
    """The values of an architecture, whose keys begin with its name."""

    def __init__(self, gguf: Gguf) -> None:
        self._gguf = gguf
        self._prefix = gguf.get("general.architecture")

    def get(self, name: str) -> Any:
        """Returns a value; None without it."""
        return self._gguf.get(f"{self._prefix}.{name}")

    def has(self, name: str) -> bool:
        """Returns whether there is a value."""
        return self._gguf.has(f"{self._prefix}.{name}")

    def size(self, name: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        """Returns a number from 1 to `most`."""
        value = default if (found := self.get(name)) is None else found
        if type(value) is not int or not 1 <= value <= most:
            self.refuse(name, f"a whole number from 1 to {most}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number."""
        value = default if (found := self.get(name)) is None else found
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-30 < value < 1e30:
            self.refuse(name, "a positive number", value)
        # Written as float32: the shortest decimal number that rounds to it is the one that was meant.
        return float(str(np.float32(value)))

    def numbers(self, name: str, count: int) -> list[float]:
        """Returns the first numbers of an array that has at least `count`."""
        values = self._gguf.numbers(f"{self._prefix}.{name}")
        if values is None or len(values) < count or not np.isfinite(values).all():
            self.refuse(name, f"at least {count} numbers", None if values is None else values.tolist())
        return [float(str(value)) for value in values[:count]]

    def layers(self, name: str) -> list[int]:
        """Returns an array that has a whole number for each layer."""
        values, count = self._gguf.numbers(f"{self._prefix}.{name}"), self.size("block_count", most=1024)
        numbers: list[int] = [] if values is None else values.tolist()
        if len(numbers) != count or not all(type(each) is int and each >= 0 for each in numbers):
            self.refuse(name, f"{count} whole numbers, one for each layer", numbers)
        return numbers

    def numbers_of_layers(self, name: str) -> list[int]:
        """Returns a positive whole number for each layer, of which metadata may have one for all."""
        try:
            return [self.size(name)] * self.size("block_count", most=1024)
        except CheckpointError:
            numbers = self.layers(name)
        if min(numbers) < 1:
            self.refuse(name, "positive numbers", numbers)
        return numbers

    def require(self, name: str, value: object, supported: object) -> None:
        """Raises CheckpointError if a value is not the only supported one."""
        if value != supported:
            self.refuse(name, repr(supported), value)

    def refuse(self, name: str, expected: str, value: object) -> NoReturn:
        """Raises CheckpointError."""
        raise CheckpointError(f"GGUF metadata: '{self._prefix}.{name}': expected {expected}, got {value!r:.80}")
