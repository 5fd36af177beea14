"""What tenants may use: a TOML file with a section for each tenant, and one for all others.

[default]
max_concurrent_requests = 8

[tenant.acme]
tokens_per_minute = 200_000
max_media_bytes = "1GiB"
"""

import tomllib

from pydantic import BaseModel, ConfigDict, ValidationError

from glimpse.engine.protocol.option_values import explain
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tenant import Limits, is_tenant_name


class TenantLimits(BaseModel):
    """The limits of all tenants."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: Limits = Limits()
    tenant: dict[str, Limits] = {}

    def of(self, tenant: str) -> Limits:
        """Returns the limits of its section; those of `[default]` if it has none."""
        return self.tenant.get(tenant, self.default)


def parse_limits(text: str, name: str) -> TenantLimits:
    """Returns what the file says. Raises IdentityConfigError, with `name`, the file's."""
    try:
        limits = TenantLimits.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise IdentityConfigError(f"'{name}': expected TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise IdentityConfigError(f"'{name}', '{place}': {explain(first)}") from error
    for tenant in limits.tenant:
        if not is_tenant_name(tenant):
            raise IdentityConfigError(
                f"'{name}': expected a tenant's name of up to 128 ASCII characters, got {tenant!r}"
            )
    return limits
