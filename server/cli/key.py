"""`glimpse key`: makes an API key, and its line for the file that --api-keys names."""

import sys
from typing import Annotated

from cyclopts import Parameter

from glimpse.identity.api_keys import KeyOwner, key_line, new_key
from glimpse.identity.tenant import is_tenant_name


def key(
    tenant: str,
    *,
    admin: Annotated[bool, Parameter(negative="")] = False,
    stdin: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Writes a line with the key's hash to standard output, and the key to standard error: `glimpse key acme >> FILE`.

    Parameters
    ----------
    tenant
        Whose key it is: 1 to 128 ASCII characters without spaces. Several keys may belong to one tenant.
    admin
        The key may also purge other tenants, and load LoRA adapters.
    stdin
        Read an existing key from standard input instead of making one.
    """
    if not is_tenant_name(tenant):
        sys.exit(f"glimpse: 'tenant': expected 1 to 128 ASCII characters without spaces, got {tenant!r}")
    secret = sys.stdin.readline().strip() if stdin else new_key()
    if not secret:
        sys.exit("glimpse: '--stdin': expected a key on standard input, got an empty line")
    print(key_line(secret, KeyOwner(tenant=tenant, is_admin=admin)))
    if not stdin:
        print(f"The key of {tenant}, which is shown only now:\n{secret}", file=sys.stderr)
