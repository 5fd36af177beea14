"""API keys: a file with a line for each key, which holds the key's hash and not the key.

    sha256:9f86d081884c7d65…  acme
    sha256:60303ae22b998861…  operations  admin

Keys that Glimpse makes have 256 random bits, so that a plain hash of them cannot be searched.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tenant import is_tenant_name

_PREFIX = "glimpse-"
_KEY_BYTES = 32
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOwner:
    """Who a credential belongs to."""

    tenant: str
    is_admin: bool = False
    """May call methods that concern other tenants."""


def new_key() -> str:
    """Returns a random API key."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def key_hash(key: str) -> str:
    """Returns what the file holds of a key."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def key_line(key: str, caller: KeyOwner) -> str:
    """Returns the line of a key, without its end."""
    return "  ".join((key_hash(key), caller.tenant, *((_ADMIN,) if caller.is_admin else ())))


def parse_keys(text: str, name: str) -> Mapping[str, KeyOwner]:
    """Returns the callers of a file's keys, by the hashes of the keys.

    Args:
        text: the file. Empty lines, and lines that begin with "#", mean nothing.

    Raises:
        IdentityConfigError: a line is not a key's, or a hash occurs twice.
    """
    callers: dict[str, KeyOwner] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"'{name}', line {number}"
        caller = _parse_caller(words, place)
        if words[0] in callers:
            raise IdentityConfigError(f"{place}: expected each key once, got one that an earlier line has")
        callers[words[0]] = caller
    return callers


def _parse_caller(words: list[str], place: str) -> KeyOwner:
    # A key that was written down instead of its hash must not end up in a log: the words are not repeated.
    if not _HASH.fullmatch(words[0]):
        raise IdentityConfigError(
            f"{place}: expected sha256: and 64 hexadecimal digits; `glimpse key` makes such a line"
        )
    if len(words) < 2 or not is_tenant_name(words[1]):
        raise IdentityConfigError(f"{place}: expected a tenant's name after the hash, up to 128 ASCII characters")
    if words[2:] not in ([], [_ADMIN]):
        raise IdentityConfigError(f"{place}: expected nothing or '{_ADMIN}' after the tenant's name")
    return KeyOwner(tenant=words[1], is_admin=bool(words[2:]))
