"""What is kept of a batch, and the states that it passes. Plain values: no clock, no store."""

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """Where a batch is between its beginning and its end; names as in `glimpse.v1.BatchStatus`."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN = frozenset((Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING))
"""States after which others follow."""


class Kind(StrEnum):
    """Which file of a batch a result is in."""

    OUTPUT = "output"
    ERROR = "error"


class LineProblem(msgspec.Struct, frozen=True):
    """A line that is no request of a batch."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """From 1; None: the file as a whole."""


class ResultFile(msgspec.Struct, frozen=True):
    """A file of answers, which is made of the results when it is read."""

    num_bytes: int
    digest: bytes
    """SHA-256."""
    is_deleted: bool = False


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are seconds since 1970-01-01 UTC."""

    batch_id: str
    tenant: str
    """Name of the tenant; empty: the nameless one."""
    namespace: str
    """What the names of all that belongs to the tenant begin with: `Tenant.namespace_prefix`."""
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] = {}
    created_at: float
    expires_at: float
    """When its window ends."""
    output_seconds: float
    """How long it is kept after its end."""
    status: Status = Status.VALIDATING
    reached: dict[Status, float] = {}
    """When it came into the states after the first one."""
    num_requests: int = 0
    problems: tuple[LineProblem, ...] = ()
    files: dict[Kind, ResultFile] = {}
    owner: str = ""
    """The process that answers it."""
    leased_until: float = 0.0
    """When another process may go on, unless the owner has said more by then."""

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def ended_at(self) -> float:
        """When it came into its last state."""
        return self.reached.get(self.status, self.created_at)

    def moved(self, status: Status, now: float) -> "BatchRecord":
        """Returns the batch in another state; out of the last ones nothing leads."""
        if not self.is_open:
            raise ValueError(f"a batch that is {self.status} stays so")
        return msgspec.structs.replace(self, status=status, reached={**self.reached, status: now})

    def leased(self, owner: str, until: float) -> "BatchRecord":
        return msgspec.structs.replace(self, owner=owner, leased_until=until)

    def file_id(self, kind: Kind) -> str:
        return f"file-{self.batch_id}-{kind}"


def batch_of_file(file_id: str) -> tuple[str, Kind] | None:
    """Returns the batch and the kind of a file by its id; None: it is no file of a batch."""
    batch_id, _, kind = file_id.removeprefix("file-").rpartition("-")
    if not batch_id.startswith("batch_") or kind not in tuple(Kind):
        return None
    return batch_id, Kind(kind)
