"""Amounts that may be used within a minute. Plain arithmetic: the clock is passed in."""

from collections.abc import Callable

from glimpse.identity.errors import QuotaExceededError

_MINUTE_SECONDS = 60.0
_BUSY_SECONDS = 1.0
"""Delay before a retry where too many requests run: one of them ends any time."""


class Quota:
    """An amount that is used and grows back steadily: a token bucket, as large as what grows back in a minute.

    What a request uses may be known only at its end, so that the balance may become negative; it then has to grow back
    above zero first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        self._used = 0.0
        self._updated = clock()

    def wait_seconds(self, amount: float, per_minute: int) -> float:
        """Returns how long it takes until `amount` is left, at most what grows back in a minute; 0: it is left now."""
        self._refill(per_minute)
        return max(0.0, self._used + min(amount, per_minute) - per_minute) * _MINUTE_SECONDS / per_minute

    def use(self, amount: float, per_minute: int) -> None:
        """Takes an amount, whether or not it is left. A negative one is given back."""
        self._refill(per_minute)
        self._used = max(0.0, self._used + amount)

    def _refill(self, per_minute: int) -> None:
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._updated) * per_minute / _MINUTE_SECONDS)
        self._updated = now


def quota_exceeded(what: str, per_minute: int, seconds: float) -> QuotaExceededError:
    """Returns the error of a tenant that has used up what it may use in a minute.

    Args:
        what: "requests" or "tokens".
        seconds: When to repeat the request.
    """
    message = f"your tenant has used its {per_minute} {what} per minute; repeat the request in {seconds:.1f} s"
    return QuotaExceededError(message, retry_after_seconds=seconds)


def too_many_requests(most: int) -> QuotaExceededError:
    """Returns the error of a tenant that has `most` requests in progress, its limit."""
    message = f"expected at most {most} requests of your tenant at a time, got more; wait until another ends"
    return QuotaExceededError(message, retry_after_seconds=_BUSY_SECONDS)
