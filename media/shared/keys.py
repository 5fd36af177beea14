"""Names of everything in the shared store. Keys are hashes: Redis sees neither cache salts, uuids, handles nor URLs."""

import hashlib
import re
from enum import StrEnum

_TENANT = re.compile(r"[0-9a-f]{32}(?=\.)")
"""The tenant at the beginning of a cache namespace. Keys have it in clear, so that a tenant's values can be found."""

_SHARE = re.compile(r".*-([0-9a-f]{8})(?:--.*)?", re.DOTALL)

_NAMELESS = "-"
"""Stands for the tenant where there is none."""


class Area(StrEnum):
    """What values are for. Each area has a budget of its own."""

    MEDIA = "media"
    """What the media cache holds: files, and what uuids and URLs refer to."""
    UPLOADS = "uploads"
    RESPONSES = "responses"
    """Answers of the Responses API, with what was asked."""


class StoreKeys:
    """Makes the keys of one deployment."""

    def __init__(self, prefix: str) -> None:
        """`prefix` begins all keys. Servers that share media have the same."""
        self._prefix = prefix

    @property
    def removals(self) -> str:
        """Key of the removals that replicas are told of."""
        return f"{self._prefix}removals"

    @property
    def purges(self) -> str:
        """Key of the purged tenants that replicas are told of."""
        return f"{self._prefix}purges"

    @property
    def clock(self) -> str:
        """Key of the store's clock."""
        return f"{self._prefix}clock"

    @property
    def probe(self) -> str:
        """Key that never exists."""
        return f"{self._prefix}probe"

    def staged(self, token: str) -> str:
        """Returns the key of a value that is being written."""
        return f"{self._prefix}staged:{token}"

    def indexes(self, area: Area) -> list[str]:
        """Returns the keys of what the scripts know of an area: times of use, sizes, times of expiry, tenants by size.

        Each tenant has times of use of its own: a colon and the tenant follow that key.
        """
        return [f"{self._prefix}{area}-{index}" for index in ("used", "sizes", "expiry", "shares")]

    def used_by_tenant(self, area: Area, namespace: str) -> str:
        """Returns the key of the times of use of all values of a namespace's tenant."""
        return f"{self.indexes(area)[0]}:{tenant_of(namespace) or _NAMELESS}"

    def value(self, area: Area, namespace: str, kind: str, name: str | bytes) -> str:
        """Returns the key of a value. It seals namespaces from one another: those of two namespaces are never equal.

        Args:
            namespace: Cache namespace: the client's salt, and its tenant where clients are authenticated.
            kind: What `name` names.
            name: Identifies the value within its namespace and kind.
        """
        digest = hashlib.sha256()
        for field in (namespace.encode(), kind.encode(), name.encode() if isinstance(name, str) else name):
            digest.update(len(field).to_bytes(8, "little"))
            digest.update(field)
        owner = owner_of(area, namespace, name) if isinstance(name, str) else tenant_of(namespace)
        return f"{self._prefix}{area}:{owner or _NAMELESS}:{digest.hexdigest()}"

    def of_tenant(self, area: Area, namespace: str) -> str:
        """Returns how the keys of all values of a namespace's tenant begin."""
        return f"{self._prefix}{area}:{tenant_of(namespace) or _NAMELESS}:"


def tenant_of(namespace: str) -> str:
    """Returns the tenant at the beginning of a cache namespace; empty if there is none."""
    found = _TENANT.match(namespace)
    return found[0] if found else ""


def owner_of(area: Area, namespace: str, name: str) -> str:
    """Returns whose share of an area a value counts in: its tenant's.

    Where there are no tenants, the names of responses and their media say which client's it is (`share_of`).
    """
    found = _SHARE.fullmatch(name) if area is Area.RESPONSES else None
    return tenant_of(namespace) or (found[1] if found else "")


def share_of(client: str) -> str:
    """Returns what the names of a client's values have behind a dash, at their end or before two dashes."""
    return hashlib.sha256(client.encode()).hexdigest()[:8]
