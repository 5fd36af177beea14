"""Streams of values that a consumer may take where they are made, instead of in a task that each value wakes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True)
class Receiver(Generic[_T]):
    """Takes values at once, in the order of the stream."""

    is_free: Callable[[], bool]
    """Whether it can take values now."""
    take: Callable[[_T], None]
    """Takes a value. Called when it is free, once or several times in a row. An error ends the stream, as if the stream
    had raised it."""

    def of(self, function: "Callable[[_U], _T | None]") -> "Receiver[_U]":
        """Returns a receiver of what the function turns into a value of this one; None is left out."""
        take = self.take

        def take_made(value: _U) -> None:
            if (made := function(value)) is not None:
                take(made)

        return Receiver(self.is_free, take_made)

    def of_each(self, function: "Callable[[_U], Iterable[_T]]") -> "Receiver[_U]":
        """Returns a receiver of what the function turns into values of this one."""
        take = self.take

        def take_made(value: _U) -> None:
            for made in function(value):
                take(made)

        return Receiver(self.is_free, take_made)


class Stream(Generic[_T]):
    """An asynchronous generator that may hand values to a receiver while the consumer's task waits for the next one.

    A value that a receiver takes is not yielded. The generator yields the others, so it needs no receiver.
    """

    def __init__(self, generate: "Callable[[Stream[_T]], AsyncGenerator[_T, None]]") -> None:
        """`generate`: the generator function. It gets the stream, to look for the receiver."""
        self.receiver: Receiver[_T] | None = None
        """Set by the consumer before it takes the first value."""
        self._values = generate(self)

    def __aiter__(self) -> AsyncGenerator[_T, None]:
        return self._values

    def __anext__(self) -> Awaitable[_T]:
        return self._values.__anext__()

    def aclose(self) -> Awaitable[None]:
        """Ends the generator."""
        return self._values.aclose()
