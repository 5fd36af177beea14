"""Builds from the settings what decides who may call."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from glimpse.server.identity.access import Access
from glimpse.server.identity.api_keys import parse_keys
from glimpse.server.identity.errors import IdentityConfigError
from glimpse.server.identity.limits import parse_limits
from glimpse.server.identity.watched_file import WatchedFile
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.settings import AccessSettings

_T = TypeVar("_T")


def build_access(settings: AccessSettings, clients: ClientIdentifier) -> Access:
    """Builds it. Raises IdentityConfigError: a file cannot be used."""
    keys = _watched(settings.api_keys, parse_keys)
    limits = _watched(settings.tenants, parse_limits)
    is_gateway = clients.is_proxy if settings.tenant_header else None
    if limits is not None and keys is None and is_gateway is None:
        raise IdentityConfigError(
            "'--tenants': expected together with --api-keys or --tenant-header, without which there are no tenants"
        )
    return Access(keys=keys, is_gateway=is_gateway, limits=limits)


def _watched(path: Path | None, parse: Callable[[str, str], _T]) -> WatchedFile[_T] | None:
    return None if path is None else WatchedFile(path.expanduser().absolute(), parse)
