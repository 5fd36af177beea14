"""What uploads need of a store that several processes share: Redis, or the supervisor of several front ends."""

from collections.abc import Callable
from typing import Protocol

from glimpse.media.shared.keys import Area, StoreKeys
from glimpse.media.shared.values import Header


class ValueStore(Protocol):
    """Values that several processes share. Methods raise StoreUnavailableError if the store cannot be reached."""

    @property
    def keys(self) -> StoreKeys:
        """Makes the keys of values."""
        ...

    def on_removal(self, listener: Callable[[str], None]) -> None:
        """Calls `listener` with what any process announces that it removed."""
        ...

    async def put(
        self,
        area: Area,
        key: str,
        data: bytes | memoryview,
        *,
        digest: bytes,
        seconds: float,
        max_tenant_bytes: int | None = None,
    ) -> Header | None:
        """Stores a value. Returns its header; None if it alone exceeds a limit.

        Where there is no room, the least recently used values leave: of its tenant if that exceeds its own limit, else
        of the tenant that has most in the area.

        Args:
            area: Whose budget counts.
            key: A key of this area.
            data: The bytes.
            digest: Their SHA-256.
            seconds: Lifetime.
            max_tenant_bytes: Limit on what its tenant has in the area; None: the area's.
        """
        ...

    async def find(self, area: Area, key: str) -> Header | None:
        """Returns a value's header and marks the value as recently used."""
        ...

    async def read(self, area: Area, key: str, header: Header) -> bytes | None:
        """Returns a value's bytes; None if it has left the store or differs from its header.

        The caller has checked that it has room for `header.num_bytes`, twice for a moment.
        """
        ...

    async def remove(self, area: Area, key: str, *, announcement: str) -> bool:
        """Removes a value and announces it to all processes. Returns whether it existed."""
        ...
