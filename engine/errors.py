"""What the engine refuses and how it fails, in terms that hold for both doors. Knows no gRPC, no HTTP."""

from enum import StrEnum


class EngineErrorCode(StrEnum):
    """Why the engine did not answer, or stopped answering."""

    PROMPT_TOO_LONG = "prompt_too_long"
    """The prompt leaves no room for an answer in the context window, or can never fit the KV cache."""
    UNSUPPORTED = "unsupported"
    """The model cannot do what is asked (a kind of medium it does not understand, say)."""
    OVERLOADED = "overloaded"
    """The queue is full; the same request may succeed later."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device's memory did not suffice for this request beside the others; when there are fewer, it may."""
    UNAVAILABLE = "unavailable"
    """The engine process is not running: loading, restarting, draining or dead."""
    INTERNAL = "internal"
    """A fault of ours; the details are in the engine's log."""


class EngineError(Exception):
    """A request that the engine refused or could not finish."""

    def __init__(self, code: EngineErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class OutOfDeviceMemoryError(Exception):
    """A step did not fit into the device's memory. Those of its sequences that made it too large can be ended."""


class CheckpointError(Exception):
    """A checkpoint that cannot be served: a missing file, a field that is not there, an unknown architecture."""
