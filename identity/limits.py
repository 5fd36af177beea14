"""What tenants may use: a TOML file with a section for each tenant, and one for all others.

[default]
max_concurrent_requests = 8

[tenant.acme]
tokens_per_minute = 200_000
max_media_bytes = "1GiB"
"""

import tomllib
from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError

from glimpse.engine.protocol.option_values import explain
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tenant import Limits, is_tenant_name

_FROZEN = ConfigDict(frozen=True, extra="forbid")
_Positive = Annotated[int, Field(ge=1)]


class _LimitsSection(BaseModel):
    model_config = _FROZEN

    max_concurrent_requests: _Positive | None = None
    requests_per_minute: _Positive | None = None
    tokens_per_minute: _Positive | None = None
    min_priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    max_completions: _Positive | None = None
    max_completion_tokens: _Positive | None = None
    max_media_bytes: ByteSize | None = None
    max_upload_bytes: Annotated[ByteSize, Field(ge=1024)] | None = None

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class _LimitsFile(BaseModel):
    model_config = _FROZEN

    default: _LimitsSection = _LimitsSection()
    tenant: dict[str, _LimitsSection] = {}


class TenantLimits:
    """The limits of all tenants."""

    def __init__(self, default: Limits, by_tenant: dict[str, Limits]) -> None:
        self._default = default
        self._by_tenant = by_tenant

    def of(self, tenant: str) -> Limits:
        """Returns the limits of its section; those of `[default]` if it has none."""
        return self._by_tenant.get(tenant, self._default)


def parse_limits(text: str, name: str) -> TenantLimits:
    """Returns what the file says. Raises IdentityConfigError, with `name`, the file's."""
    try:
        file = _LimitsFile.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise IdentityConfigError(f"'{name}': expected TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise IdentityConfigError(f"'{name}', '{place}': {explain(first)}") from error
    for tenant in file.tenant:
        if not is_tenant_name(tenant):
            raise IdentityConfigError(
                f"'{name}': expected a tenant's name of up to 128 ASCII characters, got {tenant!r}"
            )
    return TenantLimits(file.default.limits(), {tenant: each.limits() for tenant, each in file.tenant.items()})
