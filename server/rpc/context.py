"""An RPC as this package serves it: its call, and what gRPC has to be told."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import grpc.aio
from google.protobuf.message import Message

from glimpse.identity.errors import AccessError
from glimpse.server.call.context import CallContext, new_request_id
from glimpse.server.rpc.failure import ErrorDocument
from glimpse.server.rpc.stopping import StopSwitch
from glimpse.server.telemetry.ignored_fields import MAX_HEADER_CHARACTERS, ignored_fields_header, list_header
from glimpse.streams import Receiver

REQUEST_ID_HEADER = "x-request-id"
PROMPT_TOKENS_TRAILER = "x-glimpse-prompt-tokens"
COMPLETION_TOKENS_TRAILER = "x-glimpse-completion-tokens"
UNENFORCED_HEADER = "x-glimpse-unenforced"
"""The response header that lists what a request asked for and no grammar ensures, such as
`response_format.json_schema.schema#/properties/path/format`."""
KEY_HEADER = "x-prompt-cache-key"
"""The routing key of a request, the client's or the gateway's; see `glimpse.gateway.replicas.affinity`."""
CODEC_HEADER = "x-glimpse-codec"
"""Set by the gateway on requests that it made of Connect's, or of REST requests of typed methods: how their messages
are encoded."""
GRACE_HEADER = "x-glimpse-deadline-grace"
"""Set by the gateway on REST requests: the seconds for which their RPCs outlive their deadlines, so that the server can
say that these have passed."""
PATH_HEADER = "x-envoy-original-path"
"""Set by Envoy on requests that it made of REST requests."""

_T = TypeVar("_T")

_ACCEPTED_ID = re.compile(r"[!-~]{1,128}")
"""Visible ASCII. The gateway accepts the same ids, so that the client is told the id that the log has."""
_DEADLINE_MARGIN = 0.05
"""Share of the time limit reserved for sending the response: nothing can be sent after the deadline."""
_MAX_DEADLINE_MARGIN_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Rpc:
    """An RPC that is being served: gRPC's context, and the call that its handler serves."""

    context: grpc.aio.ServicerContext[Any, Any]
    call: CallContext
    refusal: AccessError | None = None
    """Set if it is refused because of who sends it."""
    codec: str | None = None
    """How its messages are encoded: "proto" or "json" if the client speaks Connect, "http" if they are JSON in HTTP
    bodies; see `glimpse.server.rpc.json_messages`."""
    error_document: ErrorDocument | None = None
    """Phrases errors in the dialect of the client; None: the client speaks the typed API."""
    stop: StopSwitch = field(default_factory=StopSwitch)
    """Ends the RPC when the server stops. The interceptor's guard turns that into a status; a handler that can say more
    has a guard of its own."""
    reason: str | None = None
    """Why it fails, as its client is told. None: it does not, or the client has left."""
    headers_sent: bool = False
    """The gateway can no longer turn an error into an HTTP status."""

    @property
    def url(self) -> str:
        """The path of a REST request and its parameters, as the client sent them; empty for gRPC."""
        return metadata_value(self.context, PATH_HEADER) or ""

    @property
    def usage_trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata with the token counts, as far as they are known. The gateway's access log has them."""
        call = self.call
        counts = ((PROMPT_TOKENS_TRAILER, call.prompt_tokens), (COMPLETION_TOKENS_TRAILER, call.completion_tokens))
        return tuple((name, str(count)) for name, count in counts if count is not None)

    async def send_headers(
        self,
        ignored: Sequence[str] = (),
        *,
        sent_path: Callable[[str], str] = lambda path: path,
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Sends the response headers. Call it right before sending the first message.

        Args:
            ignored: paths of what has no effect, beside the fields of the call.
            sent_path: path of a field → the path by the names that the client used.
            more: headers of this response alone.
        """
        call = self.call
        self.headers_sent = True
        found = (sent_path(path) for path in call.ignored_fields)
        unenforced = (path.partition("#") for path in call.unenforced[:MAX_HEADER_CHARACTERS])
        paths = [
            quote(sent_path(field) + mark + pointer, safe="#/[]~:@!$&'()*+;=?") for field, mark, pointer in unenforced
        ]
        listed = (*list_header(UNENFORCED_HEADER, paths), *ignored_fields_header([*ignored, *found]))
        headers = ((REQUEST_ID_HEADER, call.request_id), *listed, *more)
        await self.stop.send(self.context.send_initial_metadata, headers)

    def write(self, message: Message | bytes) -> Coroutine[Any, Any, None]:
        """Begins to send a message of the response, once the one before is sent."""
        return self.stop.send(self.context.write, message)

    def receiver(self, encode: Callable[[_T], bytes]) -> Receiver[_T]:
        """Returns what writes values that are messages once they are encoded. It is free once the headers are sent."""
        write, begin = self.context.write, self.stop.begin
        return Receiver(lambda: self.headers_sent and self.stop.is_free, lambda value: begin(write, encode(value)))


def metadata_value(context: grpc.aio.ServicerContext[Any, Any], name: str) -> str | None:
    """Returns the text that the client sent under this name; None: it sent none."""
    values = (value for key, value in context.invocation_metadata() or () if key == name and isinstance(value, str))
    return next(values, None)


def request_id(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Returns the id that the client chose, or a new one."""
    chosen = metadata_value(context, REQUEST_ID_HEADER)
    return chosen if chosen is not None and _ACCEPTED_ID.fullmatch(chosen) else new_request_id()


def deadline(time_remaining_seconds: float | None, grace: str | None = None) -> float | None:
    """Returns the time by which the response must be ready; None: the client set no deadline.

    `grace`: value of the header with which the gateway says that it has added to the client's time.
    """
    if time_remaining_seconds is None:
        return None
    margin = min(time_remaining_seconds * _DEADLINE_MARGIN, _MAX_DEADLINE_MARGIN_SECONDS)
    if grace is not None and grace.isdecimal():
        margin = float(grace)
    return asyncio.get_running_loop().time() + time_remaining_seconds - margin
