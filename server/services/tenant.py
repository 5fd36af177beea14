"""TenantService: forgets what a tenant has sent."""

from collections.abc import Awaitable, Callable

from glimpse.identity.access import Access
from glimpse.identity.errors import PermissionDeniedError
from glimpse.identity.tenant import is_tenant_name
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.v1 import tenant_pb2


class TenantHandlers:
    """Method of TenantService. `glimpse.server.rpc.errors` maps the exceptions it raises to statuses."""

    def __init__(self, access: Access, purge: Callable[[str], Awaitable[bool]]) -> None:
        """`purge` forgets all that belongs to the namespaces with a prefix. It returns whether all servers do."""
        self._access = access
        self._purge = purge

    async def purge(self, request: tenant_pb2.PurgeTenantRequest, call: CallContext) -> tenant_pb2.PurgeTenantResponse:
        check_bounds(request)
        if not self._access.is_required:
            raise InvalidRequest(
                "tenant", "expected a server with tenants (--api-keys), got one without", "unsupported"
            )
        if not call.is_admin and request.tenant != call.tenant.name:
            raise PermissionDeniedError("Other tenants can only be purged with an admin key.", "permission_denied")
        if not is_tenant_name(request.tenant):
            raise InvalidRequest("tenant", "expected 1 to 128 visible ASCII characters")
        reaches_all = await self._purge(self._access.tenant(request.tenant).namespace_prefix)
        return tenant_pb2.PurgeTenantResponse(reaches_all_servers=reaches_all)
