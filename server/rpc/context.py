"""Context of the RPC that the current task serves: request id, deadline, stop switch and token usage."""

import asyncio
import re
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import quote

import grpc.aio

from glimpse.identity.errors import AccessError
from glimpse.identity.tenant import Tenant
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.rpc.stopping import StopSwitch
from glimpse.server.telemetry.ignored_fields import MAX_HEADER_CHARACTERS, ignored_fields_header, list_header

REQUEST_ID_HEADER = "x-request-id"
PROMPT_TOKENS_TRAILER = "x-glimpse-prompt-tokens"
COMPLETION_TOKENS_TRAILER = "x-glimpse-completion-tokens"
UNENFORCED_HEADER = "x-glimpse-unenforced"
"""The response header that lists what a request asked for and no grammar ensures, such as
`response_format.json_schema.schema#/properties/path/format`."""
CODEC_HEADER = "x-glimpse-codec"
"""Set by the gateway on requests that it made of Connect's, or of REST requests of typed methods: how their messages
are encoded."""

_ACCEPTED_ID = re.compile(r"[!-~]{1,128}")
"""Visible ASCII. The gateway accepts the same ids, so that the client is told the id that the log has."""
_DEADLINE_MARGIN = 0.05
"""Share of the time limit reserved for sending the response: nothing can be sent after the deadline."""
_MAX_DEADLINE_MARGIN_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class RpcContext:
    """An RPC that is being served. Token counts are updated while the response is generated."""

    request_id: str
    deadline: float | None
    """In the event loop's time, slightly before the client's deadline; None: the client set none."""
    client: str = ""
    """An opaque name of who sent it: see `glimpse.server.rpc.client_identity`."""
    tenant: Tenant = field(default_factory=Tenant)
    """Whose caches it uses and whose quotas it counts against. Only its credential decides."""
    is_admin: bool = True
    """It may concern other tenants than its own. Servers without authentication allow that to everyone."""
    refusal: AccessError | None = None
    """Set if it is refused because of who sends it."""
    stop: StopSwitch = field(default_factory=StopSwitch)
    """Ends the RPC when the server stops. The interceptor's guard turns that into a status; a handler that can say more
    has a guard of its own."""
    is_json: bool = False
    """The request came as JSON, and the response becomes JSON."""
    codec: str | None = None
    """How its messages are encoded: "proto" or "json" if the client speaks Connect, "http" if they are JSON in HTTP
    bodies; see `glimpse.server.rpc.json_messages`."""
    headers_sent: bool = False
    """The gateway can no longer turn an error into an HTTP status."""
    unenforced: Sequence[str] = ()
    """What the client asked for and no grammar ensures. The response headers list it."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    ignored_fields: list[str] = field(default_factory=list[str])
    """Paths of the request's fields that are accepted without effect."""

    @property
    def usage_trailers(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata with the token counts, as far as they are known. The gateway's access log has them."""
        counts = ((PROMPT_TOKENS_TRAILER, self.prompt_tokens), (COMPLETION_TOKENS_TRAILER, self.completion_tokens))
        return tuple((name, str(count)) for name, count in counts if count is not None)


_current: ContextVar[RpcContext | None] = ContextVar("rpc", default=None)


def begin_rpc(context: grpc.aio.ServicerContext[object, object], clients: ClientIdentifier) -> RpcContext:
    """Creates the RPC's context and makes it current in this task."""
    client = clients.identify(context.invocation_metadata() or (), context.peer())
    codec = next((str(value) for name, value in context.invocation_metadata() or () if name == CODEC_HEADER), None)
    rpc = RpcContext(
        request_id=_request_id(context),
        deadline=_deadline(context.time_remaining()),
        client=client,
        codec=codec,
        is_json=codec in ("json", "http"),
    )
    _current.set(rpc)
    return rpc


def current_rpc() -> RpcContext:
    """Returns the RPC that this task serves; outside of RPCs, a new context without a deadline."""
    rpc = _current.get()
    if rpc is None:
        rpc = RpcContext(request_id=new_request_id(), deadline=None)
        _current.set(rpc)
    return rpc


def cache_namespace(cache_salt: str) -> str:
    """Returns the cache namespace of the RPC that this task serves, for the salt that the client chose.

    Caches and stores see only the namespace: two tenants never share one, whatever their salts are.
    """
    return current_rpc().tenant.namespace(cache_salt)


def engine_namespace(namespace: str) -> str:
    """Returns the name of a cache namespace of the RPC's tenant in the engine."""
    return current_rpc().tenant.engine_namespace(namespace)


def new_request_id() -> str:
    return uuid.uuid4().hex


async def send_headers(
    context: grpc.aio.ServicerContext[object, object], ignored_fields: Sequence[str] | None = None
) -> None:
    """Sends the response headers. Call it right before sending the first message.

    `ignored_fields` are the RPC's by the names that the client used, if these differ from the paths in protos.
    Once headers are sent, the gateway can no longer turn an error into an HTTP status.
    """
    rpc = current_rpc()
    ignored = ignored_fields_header(rpc.ignored_fields if ignored_fields is None else ignored_fields)
    rpc.headers_sent = True
    paths = [quote(path, safe="#/[]~:@!$&'()*+;=?") for path in rpc.unenforced[:MAX_HEADER_CHARACTERS]]
    headers = ((REQUEST_ID_HEADER, rpc.request_id), *list_header(UNENFORCED_HEADER, paths), *ignored)
    await rpc.stop.send(context.send_initial_metadata, headers)


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
