"""The context of a call: who makes it, what it holds while it is served, and what is known of its answer."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY
from glimpse.identity.tenant import Tenant
from glimpse.media.cache.fair_share import FairCapacity
from glimpse.server.call.admission import Admission, Ticket
from glimpse.server.call.body_budget import BodyReservation
from glimpse.server.call.offload import run_sized

_BEHIND_ALL = BACKGROUND_PRIORITY + 100
_P = ParamSpec("_P")
_T = TypeVar("_T")


def new_request_id() -> str:
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class CallContext:
    """A call that is being served. The interceptor builds it once; everything that serves the call takes it as an
    argument. The defaults are of a call that nobody limits."""

    request_id: str = field(default_factory=new_request_id)
    routing_key: str = ""
    """What the gateway routes it by; empty: nothing."""
    deadline: float | None = None
    """In the event loop's time, slightly before the client's deadline; None: the client set none."""
    client: str = ""
    """An opaque name of who sent it: see `glimpse.server.rpc.client_identity`."""
    tenant: Tenant = field(default_factory=Tenant)
    """Whose caches it uses and whose quotas it counts against. Only its credential decides."""
    is_admin: bool = True
    """Whether the call may concern other tenants. Servers without authentication allow that to everyone."""
    ticket: Ticket = field(default_factory=lambda: Admission().ticket())
    """Place of the call among the requests that wait or are being prepared."""
    body: BodyReservation = field(default_factory=lambda: BodyReservation(FairCapacity(), ""))
    """The memory of its request's body."""
    is_background: bool = False
    """Whether the engine computes it with what other calls leave."""
    is_json: bool = False
    """The request came as JSON, and the response becomes JSON."""
    is_dialect: bool = False
    """The JSON is of another API than the typed one."""
    ignored_fields: list[str] = field(default_factory=list[str])
    """Paths of the request's fields that are accepted without effect."""
    adapted: dict[str, str] = field(default_factory=dict[str, str])
    """Path of a field that the handlers see → the path of what it was made of, where a dialect has its own messages."""
    unenforced: Sequence[str] = ()
    """What the client asked for and no grammar ensures. The response headers list it."""
    prompt_tokens: int | None = None
    """Token counts, updated while the response is generated; None: it has none yet."""
    completion_tokens: int | None = None

    def priority(self, chosen: int) -> int:
        """Returns the engine's priority of a request of this call that has a priority from -100 to 100 of its own."""
        return chosen + self.is_background * _BEHIND_ALL

    async def parse(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls a function that reads the request; in a thread if its body is large."""
        return await run_sized(self.client, self.body.num_bytes, function, *args, **kwargs)

    def close(self) -> None:
        """Gives back what the call holds."""
        self.ticket.close()
        self.body.release()
