"""The attempts of a call: their arguments, the deadline of all together, and when the next one is made."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from glimpse.client.errors import from_rpc_error
from glimpse.client.options import CallOptions
from glimpse.client.requests import call_arguments

WaitUntilReady: TypeAlias = bool | Callable[[str], object]
"""Whether calls wait while the server says that its model is loading; a function is called with each such answer."""

_LOADING = "model_loading"
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What all calls of a client have in common."""

    target: str
    api_key: str | None
    timeout: float | None
    wait_until_ready: WaitUntilReady


class Attempts:
    """The attempts of one call. A stream waits for the model only before its first message."""

    def __init__(self, caller: Caller, options: CallOptions) -> None:
        self._caller = caller
        arguments = call_arguments(options, caller.timeout, caller.api_key)
        self._metadata, timeout = arguments["metadata"], arguments["timeout"]
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def arguments(self) -> dict[str, Any]:
        """Returns the keyword arguments of gRPC for the next attempt."""
        left = None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)
        return {"timeout": left, "metadata": self._metadata}

    def delay(self, error: grpc.RpcError) -> float:
        """Returns after how many seconds to try again. Raises GlimpseError for a call that has failed."""
        failure = from_rpc_error(error, self._caller.target)
        seconds, wait = failure.retry_after_seconds or _RETRY_SECONDS, self._caller.wait_until_ready
        is_late = self._deadline is not None and time.monotonic() + seconds > self._deadline
        if failure.reason != _LOADING or wait is False or is_late:
            raise failure from None
        if callable(wait):
            wait(failure.message)
        return seconds
