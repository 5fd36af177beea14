"""Messages between a supervisor and its front ends: frozen structs, a tagged union in each direction."""

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from glimpse.server.telemetry.snapshots import MetricsSnapshot


class Limit(IntEnum):
    """Limits on memory that front ends have together: the columns of `SharedByteCounts`."""

    BODIES = 0
    MEDIA = 1


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The supervisor's first message: serve."""

    number: int
    """Number of the front end, from 0 on."""
    num_front_ends: int
    settings: str
    """`Settings` as JSON."""
    checkpoint: str
    """The checkpoint's folder."""
    folders: Mapping[str, str]
    """Folders of its companions, by the field of `config.json`."""
    names: tuple[str, ...]
    """Names that requests may give as `model`."""
    created: int
    """`Checkpoint.created` of the server."""
    port: int
    """Port that all front ends listen on."""
    own_port: int | None
    """Port that only this front end listens on, on the loopback address. None: it has none."""
    client_salt: bytes
    """For the names of clients, which must be the same everywhere: the engine gives each its share."""
    server: str
    """Name of the server, the same for all."""


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """A front end listens. It serves once the engine is ready."""


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """A front end is ready to serve, as the engine is."""


class CannotServe(msgspec.Struct, frozen=True, kw_only=True, tag="cannot_serve"):
    """A front end's last message before it ends, because of what is configured."""

    kind: str
    """Name of the error's class."""
    message: str


class AnnounceStop(msgspec.Struct, frozen=True, tag="announce_stop"):
    """Turn health to NOT_SERVING. Requests are still served. The reply is `StopAnnounced`."""


class StopAnnounced(msgspec.Struct, frozen=True, tag="stop_announced"):
    """The reply to `AnnounceStop`."""


class EndRequests(msgspec.Struct, frozen=True, kw_only=True, tag="end_requests"):
    """Refuse new requests, and end the others within `grace_seconds`. The reply is `RequestsEnded`."""

    grace_seconds: float


class RequestsEnded(msgspec.Struct, frozen=True, tag="requests_ended"):
    """The reply to `EndRequests`."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End."""


class TakeSnapshot(msgspec.Struct, frozen=True, tag="take_snapshot"):
    """Return the front end's metrics. The reply is `Snapshot`."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """The reply to `TakeSnapshot`."""

    metrics: MetricsSnapshot


class FrontEndLoad(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A front end's load; from the supervisor, the sum of those of the others. Sent when it has changed."""

    waiting: Mapping[str, int]
    """Client → tokens of work that wait for the engine."""
    rpcs_per_second: float
    failures_per_second: float
    media_bytes: Mapping[str, int] = {}
    """What a tenant's namespaces begin with → memory of the media of its requests, of tenants with a limit on it."""


ToFrontEnd = Begin | AnnounceStop | EndRequests | Quit | TakeSnapshot | FrontEndLoad
Reply = StopAnnounced | RequestsEnded | Snapshot
FromFrontEnd = Listening | Serving | CannotServe | FrontEndLoad | Reply
