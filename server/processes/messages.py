"""What a supervisor and its front ends tell and ask each other: frozen structs in one tagged union."""

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from glimpse.identity.tenant import Limits
from glimpse.media.shared.values import Header
from glimpse.server.telemetry.snapshots import MetricsSnapshot


class Limit(IntEnum):
    """Limits on memory that front ends have together: the columns of `SharedByteCounts`."""

    BODIES = 0
    MEDIA = 1


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The supervisor's first notice: serve."""

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
    port: int
    """Port that all front ends listen on."""
    own_port: int | None
    """Port that only this front end listens on, on the loopback address. None: it has none."""
    client_salt: bytes
    """For the names of clients, which must be the same everywhere: the engine gives each its share."""
    purges: Mapping[str, str]
    """Purges of tenants: what their namespaces begin with → the name of the last purge."""


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """A front end listens. It serves once the engine is ready."""


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """A front end is ready to serve, as the engine is."""


class CannotServe(msgspec.Struct, frozen=True, kw_only=True, tag="cannot_serve"):
    """A front end's last notice before it ends, because of what is configured."""

    kind: str
    """Name of the error's class."""
    message: str


class AnnounceStop(msgspec.Struct, frozen=True, tag="announce_stop"):
    """A call: turn health to NOT_SERVING. Requests are still served."""


class EndRequests(msgspec.Struct, frozen=True, kw_only=True, tag="end_requests"):
    """A call: refuse new requests, and end the others within `grace_seconds`."""

    grace_seconds: float


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """A notice: end."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The reply to a call that returns nothing."""


class TakeSnapshot(msgspec.Struct, frozen=True, tag="take_snapshot"):
    """A call: return the front end's metrics."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """The reply to `TakeSnapshot`."""

    metrics: MetricsSnapshot


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A notice: a front end's load; from the supervisor, the sum of those of the others. Sent when it has changed."""

    waiting: Mapping[str, int]
    """Client → tokens of work that wait for the engine."""
    rpcs_per_second: float
    failures_per_second: float
    media_bytes: Mapping[str, int] = {}
    """What a tenant's namespaces begin with → memory of the media of its requests, of tenants with a limit on it."""


class AdmitRequest(msgspec.Struct, frozen=True, kw_only=True, tag="admit_request"):
    """A call of a front end: may a tenant's request begin?"""

    tenant: str
    """The tenant's tag."""
    limits: Limits


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag="admitted"):
    """The reply to `AdmitRequest`."""

    refusal: str = ""
    """Why it may not begin, for the client; empty if it may."""
    retry_after_seconds: float = 0.0


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, tag="end_request"):
    """A notice: a tenant's request, which was admitted, has ended, or does not begin."""

    tenant: str
    has_begun: bool


class ChargeTokens(msgspec.Struct, frozen=True, kw_only=True, tag="charge_tokens"):
    """A notice: a tenant has used tokens."""

    tenant: str
    num_tokens: int


class Purge(msgspec.Struct, frozen=True, kw_only=True, tag="purge"):
    """A call of a front end: a tenant is purged. When `Done` comes, all front ends have forgotten what it sent."""

    prefix: str
    """What the tenant's namespaces begin with."""


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    """A call of the supervisor: forget what a tenant sent."""

    prefix: str
    purge: str
    """Name of the purge."""


class BeginUpload(msgspec.Struct, frozen=True, kw_only=True, tag="begin_upload"):
    """A call of a front end: make room for an upload, whose bytes follow. The reply is `UploadHeader`."""

    key: str
    """As `StoreKeys` makes it: it contains the tenant, whose uploads count together."""
    digest: bytes
    """SHA-256 of its bytes."""
    num_bytes: int
    seconds: float
    """Lifetime in seconds."""
    max_tenant_bytes: int | None
    """Limit on the uploads of its tenant together; None: that on all uploads."""


class AppendUpload(msgspec.Struct, frozen=True, kw_only=True, tag="append_upload"):
    """A call of a front end: the next chunk of an upload. The reply is `UploadExists`: it may have been evicted."""

    key: str
    data: bytes
    """`CHUNK_BYTES`, or fewer in the last chunk."""


class FindUpload(msgspec.Struct, frozen=True, kw_only=True, tag="find_upload"):
    """A call of a front end: return an upload's header, which counts as a use. The reply is `UploadHeader`."""

    key: str


class ReadUpload(msgspec.Struct, frozen=True, kw_only=True, tag="read_upload"):
    """A call of a front end: return a chunk of an upload. The reply is `UploadChunk`."""

    key: str
    index: int
    """The chunk's, from 0 on."""


class RemoveUpload(msgspec.Struct, frozen=True, kw_only=True, tag="remove_upload"):
    """A call of a front end: remove an upload. The reply, `UploadExists`, says whether there was one."""

    key: str
    announcement: str
    """What all front ends are told; empty: nothing."""


class UploadHeader(msgspec.Struct, frozen=True, kw_only=True, tag="upload_header"):
    """A reply: the header of an upload that is stored or begins. None: it does not exist, or exceeds a limit."""

    header: Header | None


class UploadExists(msgspec.Struct, frozen=True, kw_only=True, tag="upload_exists"):
    """A reply: whether there is such an upload, or was until now."""

    exists: bool


class UploadChunk(msgspec.Struct, frozen=True, kw_only=True, tag="upload_chunk"):
    """The reply to `ReadUpload`. None: there is no such upload, or it has no such chunk."""

    data: bytes | None


class UploadRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="upload_removed"):
    """A notice of the supervisor: a front end removed an upload, of which others may have copies."""

    announcement: str


UploadCall = BeginUpload | AppendUpload | FindUpload | ReadUpload | RemoveUpload
"""Calls about uploads."""
UploadReply = UploadHeader | UploadExists | UploadChunk
"""Replies to them."""
ToFrontEnd = (
    Begin
    | AnnounceStop
    | EndRequests
    | Quit
    | TakeSnapshot
    | Load
    | Admitted
    | Forget
    | UploadReply
    | UploadRemoved
    | Done
)
"""From the supervisor, and its replies."""
FromFrontEnd = (
    Listening
    | Warm
    | CannotServe
    | Load
    | AdmitRequest
    | EndRequest
    | ChargeTokens
    | UploadCall
    | Purge
    | Done
    | Snapshot
)
"""From a front end, and its replies."""
