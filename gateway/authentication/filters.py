"""Envoy's filters that check who is calling: what the template's names are replaced by."""

import json
from pathlib import Path
from typing import Any

from glimpse.gateway.authentication.tokens import key_cluster, token_filter
from glimpse.identity.authentication import AuthenticationOptions

FILTER = "authentication"

_LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3."
_SCRIPT = Path(__file__).with_name("authentication.lua")


def http_filters(options: AuthenticationOptions) -> list[dict[str, Any]]:
    """Returns the filters, in their order; none if everyone may call."""
    if not options.is_on:
        return []
    script = {"inline_string": _SCRIPT.read_text(encoding="utf-8")}
    check = {"name": FILTER, "typed_config": {"@type": f"{_LUA}Lua", "default_source_code": script}}
    return [check] if options.jwt_jwks is None else [token_filter(options), check]


def clusters(options: AuthenticationOptions) -> list[dict[str, Any]]:
    """Returns the clusters that the filters need."""
    cluster = key_cluster(options)
    return [] if cluster is None else [cluster]


def route_options(options: AuthenticationOptions) -> dict[str, Any]:
    """Returns the script's options, by the name of its filter."""
    if not options.is_on:
        return {}
    context = {"certificates": options.tenant_from_certificate}
    return {FILTER: {"@type": f"{_LUA}LuaPerRoute", "filter_context": context}}


def lines(options: dict[str, Any]) -> str:
    """Returns the members of an object as lines of YAML."""
    return "\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in options.items())
