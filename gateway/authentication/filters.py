"""Envoy's filters that check who is calling: what the template's names are replaced by."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glimpse.gateway.authentication.tokens import Tokens, key_cluster, token_filter
from glimpse.gateway.tls import Tls

FILTER = "authentication"

_LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3."
_SCRIPT = Path(__file__).with_name("authentication.lua")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How the gateway learns who is calling. With none of these, every request reaches the server, which may check."""

    tokens: Tokens | None = None
    """JWTs that are valid."""
    by_certificate: bool = False
    """The tenant is the first URI, else the first DNS name, of the client's certificate."""

    @property
    def is_on(self) -> bool:
        """Requests without a credential are refused."""
        return self.tokens is not None or self.by_certificate


EVERYONE = Authentication()
"""No credential is needed."""


def parse_authentication(*, tokens: Tokens | None = None, by_certificate: bool, tls: Tls | None) -> Authentication:
    """Checks the flags together. Raises ValueError if one is missing; the message is for the user."""
    if by_certificate and (tls is None or tls.client_ca is None):
        raise ValueError(
            "'--tenant-from-certificate': expected together with --tls-client-ca, which says which are valid"
        )
    return Authentication(tokens=tokens, by_certificate=by_certificate)


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
    options = {"certificates": authentication.by_certificate}
    return {FILTER: {"@type": f"{_LUA}LuaPerRoute", "filter_context": options}}


def lines(options: dict[str, Any]) -> str:
    """Returns the members of an object as lines of YAML."""
    return "\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in options.items())
