"""Errors of the engine, the same for the server and the offline API."""

from enum import StrEnum
from math import ceil

_MAX_RETRY_SECONDS = 60
"""The longest delay that every version of OpenAI's client obeys."""


class EngineErrorCode(StrEnum):
    """Why a request was refused or could not be finished."""

    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt leaves no room for an answer in the context window, or can never fit the KV cache."""
    UNSUPPORTED = "unsupported"
    """The model does not support the request, for example a kind of media."""
    NO_ADAPTER = "no_adapter"
    """The engine has no adapter of this name, any more or yet."""
    OVERLOADED = "overloaded"
    """The queue is full. The request may succeed later."""
    OUT_OF_MEMORY = "out_of_memory"
    """The request did not fit into device memory next to the running ones. It may succeed later."""
    LOADING = "loading"
    """The model is being loaded for the first time. The request succeeds later."""
    UNAVAILABLE = "unavailable"
    """The engine process is not running: restarting, draining or dead."""
    DIED = "died"
    """The engine process ended while it had the request."""
    SUSPECTED = "suspected"
    """The engine process ended more than once while it had the prompt, which is refused for a while."""
    INTERNAL = "internal"
    """A bug or a failure of the engine. Details are in its log."""


class EngineError(Exception):
    """A request that the engine refused or could not finish."""

    def __init__(self, code: EngineErrorCode, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        """When the same request may succeed; None: unknown, or never."""


def overloaded(why: str, seconds: float) -> EngineError:
    """Returns the refusal of a request that may succeed after so many seconds.

    It says a whole number, from 1 to `_MAX_RETRY_SECONDS`, in its message as in whatever else clients get.
    """
    delay = min(max(ceil(seconds), 1), _MAX_RETRY_SECONDS)
    return EngineError(EngineErrorCode.OVERLOADED, f"{why}; retry in {delay} s", retry_after_seconds=delay)


class OutOfDeviceMemoryError(Exception):
    """A step did not fit into device memory. A smaller step may."""


class CheckpointError(Exception):
    """The checkpoint cannot be served: a file or a field is missing, or the architecture is unknown."""


class TemplateError(ValueError):
    """The chat template refuses the conversation, or its media do not match the prompt. Caused by the client."""
