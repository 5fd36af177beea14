"""The call that is being served: its request id and its deadline. Knows gRPC's call context, and no service."""

import asyncio
import re
import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

import grpc.aio

REQUEST_ID_HEADER = "x-request-id"

_ACCEPTED_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_DEADLINE_MARGIN = 0.05
"""Share of the time allowed that is kept for answering: after the deadline nothing can be written any more."""
_MAX_DEADLINE_MARGIN_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Call:
    """What is known of a call beside its request; the token counts are filled in as it is answered."""

    request_id: str
    deadline: float | None
    """In the event loop's time, a little before the client's own; None: the client waits for ever."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_current: ContextVar[Call | None] = ContextVar("call", default=None)


def begin_call(context: grpc.aio.ServicerContext[object, object]) -> Call:
    """Makes the call known to everything that runs in this task."""
    call = Call(request_id=_request_id(context), deadline=_deadline(context.time_remaining()))
    _current.set(call)
    return call


def current_call() -> Call:
    """The call that this task serves; an empty one outside of any."""
    call = _current.get()
    if call is None:
        call = Call(request_id=new_request_id(), deadline=None)
        _current.set(call)
    return call


def new_request_id() -> str:
    return uuid.uuid4().hex


async def send_headers(
    context: grpc.aio.ServicerContext[object, object], extra: Iterable[tuple[str, str]] = ()
) -> None:
    """Sends the response's headers. To be called right before the first message.

    Sooner would be wrong: an error that follows could no longer become an HTTP status at the gateway.
    """
    await context.send_initial_metadata(((REQUEST_ID_HEADER, current_call().request_id), *extra))


def _request_id(context: grpc.aio.ServicerContext[object, object]) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == REQUEST_ID_HEADER and isinstance(value, str) and _ACCEPTED_ID.fullmatch(value):
            return value
    return new_request_id()


def _deadline(time_remaining_seconds: float | None) -> float | None:
    if time_remaining_seconds is None:
        return None
    margin = min(time_remaining_seconds * _DEADLINE_MARGIN, _MAX_DEADLINE_MARGIN_SECONDS)
    return asyncio.get_running_loop().time() + time_remaining_seconds - margin
