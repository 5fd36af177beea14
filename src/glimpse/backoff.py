"""Pauses between attempts that may fail again."""


class Backoff:
    """Each pause is twice as long as the one before it, up to a limit."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self.seconds = first_seconds
        """The next pause."""
        self._first_seconds, self._max_seconds = first_seconds, max_seconds

    def take(self) -> float:
        """Returns the next pause."""
        seconds, self.seconds = self.seconds, min(2 * self.seconds, self._max_seconds)
        return seconds

    def reset(self) -> None:
        """Begins again with the first pause, after a success."""
        self.seconds = self._first_seconds
