"""A tenant: who a request is served for, and whose caches it uses."""

import hashlib
import re

_NAME = re.compile(r"[!-~]{1,128}")
_TAG_DOMAIN, _NAMESPACE_DOMAIN = b"glimpse tenant\0", b"glimpse namespace\0"
_TAG_CHARACTERS = 32


class Tenant:
    """A tenant as this process knows it. The nameless one sends the requests of servers without authentication."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        tag = hashlib.sha256(_TAG_DOMAIN + name.encode()).hexdigest()[:_TAG_CHARACTERS]
        self.namespace_prefix = f"{tag}." if name else ""
        """What all of its cache namespaces begin with, and no other tenant's."""

    def namespace(self, cache_salt: str) -> str:
        """Returns the cache namespace of its requests with this salt.

        It hashes both, so that no tenant reaches another's namespace by its choice of a salt. The nameless tenant's
        namespaces are the salts themselves.
        """
        if not self.name:
            return cache_salt
        digest = hashlib.sha256(_NAMESPACE_DOMAIN + self.name.encode() + b"\0" + cache_salt.encode())
        return self.namespace_prefix + digest.hexdigest()


def is_tenant_name(name: str) -> bool:
    """Whether a tenant may have this name: 1 to 128 visible ASCII characters."""
    return _NAME.fullmatch(name) is not None
