"""Envoy's filters that check who is calling: what the template's names are replaced by."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimpse.gateway.authentication.tokens import Tokens, key_cluster, token_filter
from glimpse.gateway.tls import Tls
from glimpse.server.identity.api_keys import parse_keys
from glimpse.server.identity.errors import IdentityConfigError
from glimpse.server.identity.watched_file import WatchedFile

FILTER = "authentication"

_LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3."
_SCRIPT = Path(__file__).with_name("authentication.lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How the gateway learns who is calling. With none of these, everyone may call."""

    api_keys: Path | None = None
    """File of hashed keys, as the server's --api-keys. Envoy must be able to read it."""
    tokens: Tokens | None = None
    """JWTs that are valid."""
    by_certificate: bool = False
    """The tenant is the first URI, else the first DNS name, of the client's certificate."""

    @property
    def is_on(self) -> bool:
        """Requests without a credential are refused."""
        return self.api_keys is not None or self.tokens is not None or self.by_certificate


EVERYONE = Authentication()
"""No credential is needed."""


def parse_authentication(
    api_keys: Path | None, *, tokens: Tokens | None = None, by_certificate: bool, tls: Tls | None
) -> Authentication:
    """Checks the flags together.

    Raises:
        ValueError: a flag is missing or a file cannot be used; the message is for the user.
    """
    if by_certificate and (tls is None or tls.client_ca is None):
        raise ValueError(
            "'--tenant-from-certificate': expected together with --tls-client-ca, which says which are valid"
        )
    authentication = Authentication(api_keys=api_keys, tokens=tokens, by_certificate=by_certificate)
    _check(authentication)
    return authentication


def _check(authentication: Authentication) -> None:
    if authentication.api_keys is not None:
        try:
            WatchedFile(authentication.api_keys, parse_keys)
        except IdentityConfigError as error:
            raise ValueError(f"'--api-keys': {error}") from error


def http_filters(authentication: Authentication) -> list[dict[str, Any]]:
    """Returns the filters, in their order; none if everyone may call."""
    if not authentication.is_on:
        return []
    script = {"inline_string": _SCRIPT.read_text(encoding="utf-8")}
    check = {"name": FILTER, "typed_config": {"@type": f"{_LUA}Lua", "default_source_code": script}}
    return [check] if authentication.tokens is None else [token_filter(authentication.tokens), check]


def clusters(authentication: Authentication) -> list[dict[str, Any]]:
    """Returns the clusters that the filters need."""
    cluster = None if authentication.tokens is None else key_cluster(authentication.tokens)
    return [] if cluster is None else [cluster]


def route_options(authentication: Authentication) -> dict[str, Any]:
    """Returns the script's options, by the name of its filter."""
    if not authentication.is_on:
        return {}
    options: dict[str, Any] = {"certificates": authentication.by_certificate}
    if authentication.api_keys is not None:
        options["keys"] = str(authentication.api_keys.absolute())
    return {FILTER: {"@type": f"{_LUA}LuaPerRoute", "filter_context": options}}


def lines(options: dict[str, Any]) -> str:
    """Returns the members of an object as lines of YAML."""
    return "\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in options.items())
