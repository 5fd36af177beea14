"""Routes of requests that the gateway refuses by path or verb, and the filters that answer them (`refusals.lua`)."""

from pathlib import Path
from typing import Any

from glimpse.gateway.replicas.clusters import BY_LOAD

_DROP, _ANSWER = "drop_body", "refuse"
_LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3."
_SCRIPT = Path(__file__).with_name("refusals.lua")


def http_filters() -> list[dict[str, Any]]:
    """Returns the filters, in their order. They are off except on these routes."""
    script = {"inline_string": _SCRIPT.read_text(encoding="utf-8")}
    config = {"@type": f"{_LUA}Lua", "default_source_code": script}
    return [{"name": name, "disabled": True, "typed_config": config} for name in (_DROP, _ANSWER)]


def refusal(match: dict[str, Any], status: int, *, max_wait: str, **context: str) -> dict[str, Any]:
    """Returns a route whose requests get this status.

    Args:
        match: The route's match.
        max_wait: How long the whole body may take; then the answer is 408.
        context: `body`, and `allow`, the header of that name.
    """
    contexts = ((_DROP, {}), (_ANSWER, {"status": str(status), "body": "", **context}))
    return {
        "match": match,
        # No request reaches the cluster. Routes without one have no time for a body. A pause alone would not end a body
        # that comes byte by byte.
        "route": {"cluster": BY_LOAD, "max_stream_duration": {"max_stream_duration": max_wait}},
        "typed_per_filter_config": {
            name: {"@type": f"{_LUA}LuaPerRoute", "filter_context": values} for name, values in contexts
        },
    }
