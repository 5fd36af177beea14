"""Builds from the settings what decides who may call."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from glimpse.identity.access import Access
from glimpse.identity.api_keys import parse_keys
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.limits import parse_limits
from glimpse.identity.tenant import SharedCounts
from glimpse.identity.tokens import build_verifier
from glimpse.identity.watched_file import WatchedFile, watch_flag
from glimpse.media.shared.address import parse_store_url
from glimpse.server.rpc.client_identity import ClientIdentifier
from glimpse.server.settings import AccessSettings, Settings
from glimpse.server.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from glimpse.identity.shared_quota import SharedQuotas

_T = TypeVar("_T")


def build_access(
    settings: AccessSettings,
    clients: ClientIdentifier,
    *,
    has_client_ca: bool = False,
    shared: SharedCounts | None = None,
) -> Access:
    """Builds it.

    Args:
        settings: who may call.
        shared: counts what tenants use in several processes.

    Raises:
        IdentityConfigError: a file cannot be used.
    """
    keys = _watched("--api-keys", settings.api_keys, parse_keys)
    limits = _watched("--tenants", settings.tenants, parse_limits)
    is_gateway = clients.is_proxy if settings.tenant_header else None
    settings.authentication.check(has_client_ca=has_client_ca)
    access = Access(
        keys=keys,
        tokens=build_verifier(settings.authentication),
        is_gateway=is_gateway,
        is_proxy=clients.is_proxy,
        by_certificate=settings.authentication.tenant_from_certificate,
        limits=limits,
        shared=shared,
    )
    if limits is not None and not access.is_required:
        raise IdentityConfigError(
            "'--tenants': expected together with --api-keys, --jwt-jwks, --tenant-header or "
            "--tenant-from-certificate, without which there are no tenants"
        )
    return access


def build_quotas(
    settings: Settings, metrics: Metrics, *, server: str, on_change: Callable[[bool], None]
) -> "SharedQuotas | None":
    """Builds what counts quotas over all servers of a media store; None if there is none, or no quota.

    `server` is as in `SharedQuotas`. `on_change` is told whether they are counted together, first and whenever that
    changes.
    """
    if settings.media.media_store is None or settings.access.tenants is None:
        return None
    from glimpse.identity.shared_quota import SharedQuotas  # noqa: PLC0415 - the Redis client takes 60 ms

    def changed(is_available: bool) -> None:
        metrics.set_quota_store_available(is_available)
        on_change(is_available)

    metrics.add_quota_store()
    changed(False)
    return SharedQuotas(
        parse_store_url(settings.media.media_store, settings.media.media_store_ca),
        prefix=settings.media.media_store_prefix,
        server=server,
        on_change=changed,
    )


def _watched(flag: str, path: Path | None, parse: Callable[[str, str], _T]) -> WatchedFile[_T] | None:
    return None if path is None else watch_flag(flag, path, parse)
