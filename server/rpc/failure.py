"""A failure as clients see it, in no dialect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcFailure:
    """Why an RPC ends without its response."""

    code: grpc.StatusCode
    message: str
    reason: str
    """What went wrong, as a name in lower case, such as "media_too_large"."""
    field: str | None = None
    """Proto path of the invalid field."""
    http_status: int | None = None
    """Set if the HTTP status differs from the one that `code` maps to."""
    retry_after_seconds: float | None = None
    """When the same request may succeed, for RESOURCE_EXHAUSTED, UNAVAILABLE and ABORTED. None: unknown, or never."""


class FailedRpcError(Exception):
    """An RPC has failed, and why is known already."""

    def __init__(self, failure: RpcFailure, *, num_events: int = 0) -> None:
        """`num_events`: the numbered events that the stream has had."""
        super().__init__(failure.message)
        self.failure = failure
        self.num_events = num_events


ErrorDocument = Callable[[RpcFailure], Mapping[str, Any]]
"""Makes the JSON document by which a dialect reports a failure."""
