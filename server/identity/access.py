"""Decides who sends an RPC, from its credential alone, and refuses those that have none.

Health is open to everyone, because load balancers and Kubernetes have no credentials. Load balancers among the trusted
proxies may also read load reports. Everything else needs a credential.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from glimpse.server.identity.api_keys import Caller, key_hash
from glimpse.server.identity.errors import UnauthenticatedError
from glimpse.server.identity.limits import TenantLimits
from glimpse.server.identity.tenant import Tenant, is_tenant_name
from glimpse.server.identity.tokens import TokenVerifier
from glimpse.server.identity.watched_file import WatchedFile

if TYPE_CHECKING:
    from glimpse.server.identity.shared_quota import SharedQuotas

TENANT_HEADER = "x-glimpse-tenant"
"""Set by the gateway to the tenant of a request; it removes what clients send."""
ADDRESS_HEADER = "x-glimpse-client-address"
"""Set by the gateway to the address of its peer. Believed only if a trusted proxy sends it."""
_OPEN = "/grpc.health.v1.Health/"
_LOAD_REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
_KEY_HEADERS = ("authorization", "x-api-key")
_HINT = "send `Authorization: Bearer KEY`, or `x-api-key: KEY`"


class Access:
    """Who may call. Without keys, everyone may, as the nameless tenant."""

    def __init__(
        self,
        *,
        keys: WatchedFile[Mapping[str, Caller]] | None = None,
        tokens: TokenVerifier | None = None,
        is_gateway: Callable[[str], bool] | None = None,
        is_proxy: Callable[[str], bool] = lambda _: False,
        by_certificate: bool = False,
        limits: WatchedFile[TenantLimits] | None = None,
        shared_quotas: "SharedQuotas | None" = None,
    ) -> None:
        """
        Args:
            keys: the callers of API keys, by the hashes of the keys.
            tokens: verifies JWTs.
            is_gateway: whether a peer, as gRPC writes it, may say whose requests it passes on. None: no one may.
            by_certificate: the certificate of the client names the tenant. Connections without a valid one must be
                refused before.
            is_proxy: whether a peer is a load balancer, which may read load reports without a credential.
            limits: what tenants may use. Default: what the server's own limits allow.
            shared_quotas: counts what tenants use over several servers. Default: this server counts alone.
        """
        self._keys = keys
        self._tokens = tokens
        self._is_gateway = is_gateway
        self._is_proxy = is_proxy
        self._by_certificate = by_certificate
        self._limits = limits
        self._shared_quotas = shared_quotas
        self._tenants: dict[str, Tenant] = {}
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
            metadata: its invocation metadata.
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
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, shared=self._shared_quotas)
        if self._limits is not None:
            tenant.set_limits(self._limits.value.of(name))
        return tenant

    def forget_prefixes(self, namespace_prefix: str) -> None:
        """Forgets the cached prefixes of the tenant whose namespaces begin so, if it has called this server."""
        for tenant in self._tenants.values():
            if tenant.namespace_prefix == namespace_prefix:
                tenant.forget_prefixes()

    async def watch(self) -> None:
        """Keeps what is known about callers up to date, until it is cancelled."""
        watched = (self._keys, self._limits, self._tokens and self._tokens.keys, self._shared_quotas)
        await asyncio.gather(*(each.watch() for each in watched if each is not None))

    def _is_open(self, method: str, values: Mapping[str, str], peer: str) -> bool:
        """Whether anyone, or this load balancer, may call. What it passes on for clients has their addresses."""
        if method == _LOAD_REPORTS:
            return self._is_proxy(peer) and ADDRESS_HEADER not in values
        return method.startswith(_OPEN)

    def _caller(self, values: Mapping[str, str], peer: str, connection: Mapping[str, Iterable[bytes]]) -> Caller:
        key = _credential(values)
        caller = None if self._keys is None else self._keys.value.get(key_hash(key))
        if caller is not None:
            return caller
        tenant = self._tokens.tenant(key) if key and self._tokens is not None else None
        if tenant is not None:
            return Caller(tenant=tenant)
        named = values.get(TENANT_HEADER, "")
        if is_tenant_name(named) and self._is_gateway is not None and self._is_gateway(peer):
            return Caller(tenant=named)
        # A gateway's certificate is not that of the client whose request it passes on.
        if self._by_certificate and not (self._is_proxy(peer) and ADDRESS_HEADER in values):
            certified = _certified_name(connection)
            if is_tenant_name(certified):
                return Caller(tenant=certified)
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
    for name in _KEY_HEADERS:
        if value := values.get(name, "").strip():
            scheme, _, rest = value.partition(" ")
            return rest.strip() if scheme.lower() == "bearer" else value
    return ""


def _certified_name(connection: Mapping[str, Iterable[bytes]]) -> str:
    """Returns the first URI, else the first DNS name, of the peer's certificate; empty if it has neither."""
    names = (name for kind in ("peer_uri", "peer_dns") for name in connection.get(kind, ()))
    return next(names, b"").decode(errors="replace")
