"""Decides who sends an RPC, from its credential alone, and refuses those that have none.

Health is open to everyone, because load balancers and Kubernetes have no credentials. Load balancers among the trusted
proxies may also read load reports. Everything else needs a credential.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from glimpse.identity.api_keys import KeyOwner, key_hash
from glimpse.identity.errors import UnauthenticatedError
from glimpse.identity.limits import TenantLimits
from glimpse.identity.tenant import SharedCounts, Tenant, is_tenant_name
from glimpse.identity.tokens import TokenVerifier
from glimpse.identity.watched_file import WatchedFile

TENANT_HEADER = "x-glimpse-tenant"
"""Set by the gateway to the tenant of a request; it removes what clients send."""
ADDRESS_HEADER = "x-glimpse-client-address"
"""Set by the gateway to the address of its peer. Believed only if a trusted proxy sends it."""
_OPEN = "/grpc.health.v1.Health/"
_LOAD_REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
KEY_HEADERS = ("authorization", "x-api-key")
_MOST_TENANTS = 4096
"""Tenants that are kept though they use nothing: any subject of a valid JWT is one."""
_HINT = "send `Authorization: Bearer KEY`, or `x-api-key: KEY`"


class Access:
    """Who may call. Without keys, everyone may, as the nameless tenant."""

    def __init__(
        self,
        *,
        keys: WatchedFile[Mapping[str, KeyOwner]] | None = None,
        tokens: TokenVerifier | None = None,
        is_gateway: Callable[[str], bool] | None = None,
        is_proxy: Callable[[str], bool] = lambda _: False,
        by_certificate: bool = False,
        limits: WatchedFile[TenantLimits] | None = None,
        shared: SharedCounts | None = None,
    ) -> None:
        """
        Args:
            keys: the callers of API keys, by the hashes of the keys.
            is_gateway: whether a peer, as gRPC writes it, may say whose requests it passes on. None: no one may.
            by_certificate: the certificate of the client names the tenant. Connections without a valid one must be
                refused before.
            is_proxy: whether a peer is a load balancer, which may read load reports without a credential.
            limits: what tenants may use. Default: what the server's own limits allow.
            shared: counts what tenants use in several processes. Default: this one counts alone.
        """
        self._keys = keys
        self._tokens = tokens
        self._is_gateway = is_gateway
        self._is_proxy = is_proxy
        self._by_certificate = by_certificate
        self._limits = limits
        self._shared = shared
        self._purges: dict[str, str] = {}
        """What a purged tenant's namespaces begin with → the name of the last purge."""
        self._media_of_others: Mapping[str, int] = {}
        self._tenants: dict[str, Tenant] = {}
        """By name; those that called last come last."""
        self._by_prefix: dict[str, Tenant] = {}
        """Tenants by what their namespaces begin with."""
        self._nameless = Tenant()

    @property
    def is_required(self) -> bool:
        """Whether requests need a credential."""
        return self._by_certificate or any(each is not None for each in (self._keys, self._tokens, self._is_gateway))

    def authenticate(
        self,
        method: str,
        metadata: Iterable[tuple[str, str | bytes]],
        peer: str = "",
        connection: Mapping[str, Iterable[bytes]] | None = None,
    ) -> "Identity":
        """Returns who sends an RPC.

        Args:
            method: its full name, such as "/glimpse.v1.ChatService/CountTokens".
            peer: the other end of the connection, as gRPC writes it.
            connection: what gRPC knows of a TLS connection (`auth_context`).

        Raises:
            UnauthenticatedError: the credential is missing or wrong.
        """
        values = {name: value for name, value in metadata if isinstance(value, str)}
        if not self.is_required or self._is_open(method, values, peer):
            return Identity(self._nameless, is_admin=not self.is_required)
        caller = self._caller(values, peer, connection or {})
        return Identity(self.tenant(caller.tenant), is_admin=caller.is_admin)

    def tenant(self, name: str) -> Tenant:
        """Returns the tenant of this name, with its limits of this moment."""
        tenant = self._tenants.pop(name, None) or self._new_tenant(name)
        self._tenants[name] = tenant
        if self._limits is not None:
            tenant.set_limits(self._limits.value.of(name))
        return tenant

    def forget_prefixes(self, namespace_prefix: str, purge: str | None = None) -> None:
        """Forgets the cached prefixes of the tenant whose namespaces begin so. Without its name, the purge is new."""
        name = self._purges[namespace_prefix] = purge or secrets.token_hex(8)
        if (tenant := self._by_prefix.get(namespace_prefix)) is not None:
            tenant.forget_prefixes(name)

    def media_bytes(self) -> Mapping[str, int]:
        """Returns what the media of tenants with a limit on it occupy here, by what their namespaces begin with."""
        if self._limits is None:
            return {}
        shares = ((prefix, tenant.media) for prefix, tenant in self._by_prefix.items())
        return {prefix: share.num_bytes for prefix, share in shares if share.num_bytes and share.max_bytes is not None}

    def set_media_of_others(self, num_bytes: Mapping[str, int]) -> None:
        """Says what the media of tenants occupy in other processes, all of it, as `media_bytes` returns it there."""
        for prefix in self._media_of_others.keys() | num_bytes.keys():
            if (tenant := self._by_prefix.get(prefix)) is not None:
                tenant.media.num_bytes_of_others = num_bytes.get(prefix, 0)
        self._media_of_others = num_bytes

    def _new_tenant(self, name: str) -> Tenant:
        self._evict()
        tenant = Tenant(name, shared=self._shared)
        self._by_prefix[tenant.namespace_prefix] = tenant
        tenant.forget_prefixes(self._purges.get(tenant.namespace_prefix, ""))
        tenant.media.num_bytes_of_others = self._media_of_others.get(tenant.namespace_prefix, 0)
        return tenant

    def _evict(self) -> None:
        """Drops the tenant that has not called for longest, if there are too many and it uses nothing.

        Else it goes to the end, so that a new tenant costs the same however many are in use. Two are looked at, so that
        the number of tenants falls again.
        """
        for name in list(islice(self._tenants, max(0, min(2, len(self._tenants) + 1 - _MOST_TENANTS)))):
            tenant = self._tenants.pop(name)
            if tenant.is_idle:
                del self._by_prefix[tenant.namespace_prefix]
            else:
                self._tenants[name] = tenant

    async def watch(self) -> None:
        """Keeps what is known about callers up to date, until it is cancelled."""
        watched = (self._keys, self._limits, self._tokens and self._tokens.keys)
        await asyncio.gather(*(each.watch() for each in watched if each is not None))

    def _is_open(self, method: str, values: Mapping[str, str], peer: str) -> bool:
        """Whether anyone, or this load balancer, may call. What it passes on for clients has their addresses."""
        if method == _LOAD_REPORTS:
            return self._is_proxy(peer) and ADDRESS_HEADER not in values
        return method.startswith(_OPEN)

    def _caller(self, values: Mapping[str, str], peer: str, connection: Mapping[str, Iterable[bytes]]) -> KeyOwner:
        key = _credential(values)
        caller = None if self._keys is None else self._keys.value.get(key_hash(key))
        if caller is not None:
            return caller
        tenant = self._tokens.tenant(key) if key and self._tokens is not None else None
        if tenant is not None:
            return KeyOwner(tenant=tenant)
        named = values.get(TENANT_HEADER, "")
        if is_tenant_name(named) and self._is_gateway is not None and self._is_gateway(peer):
            return KeyOwner(tenant=named)
        # A gateway's certificate is not that of the client whose request it passes on.
        if self._by_certificate and not (self._is_proxy(peer) and ADDRESS_HEADER in values):
            certified = _certified_name(connection)
            if is_tenant_name(certified):
                return KeyOwner(tenant=certified)
        if not key:
            raise UnauthenticatedError(f"The request has no credential; {_HINT}.")
        raise UnauthenticatedError(f"The credential is not valid; {_HINT}.")


class Identity:
    """Who sends an RPC."""

    def __init__(self, tenant: Tenant, *, is_admin: bool = False) -> None:
        self.tenant = tenant
        self.is_admin = is_admin
        """May call methods that concern other tenants."""


def _credential(values: Mapping[str, str]) -> str:
    for name in KEY_HEADERS:
        if value := values.get(name, "").strip():
            scheme, _, rest = value.partition(" ")
            return rest.strip() if scheme.lower() == "bearer" else value
    return ""


def _certified_name(connection: Mapping[str, Iterable[bytes]]) -> str:
    """Returns the first URI, else the first DNS name, of the peer's certificate; empty if it has neither."""
    names = (name for kind in ("peer_uri", "peer_dns") for name in connection.get(kind, ()))
    return next(names, b"").decode(errors="replace")
