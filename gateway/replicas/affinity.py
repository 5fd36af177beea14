"""Routes by key, so that the turns of a conversation find their cached prefix: the parts of Envoy's configuration.

A request that may have a key first passes the filter `affinity` (Envoy's external authorization). It holds the
beginning of the body and sends it to a listener inside Envoy. Its script, `conversation_key.lua`, answers with the key.
The filter puts the key into a header and lets the request pass. The routes then choose a cluster: by a consistent hash
of the key, or by load.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from glimpse.dialect.options import binding_option, enum_type, message_type
from glimpse.gateway import descriptors

KEY_HEADER = "x-prompt-cache-key"
"""Holds a request's key: from its client, or else from its body."""

NO_KEY = "-"
"""The key of a request that has none."""

BODY_BYTES = 512 << 10
"""What is read of a body at most: a key further back is not found. Less than Envoy may hold of a body."""

_FILTER = "affinity"
_LISTENER = "glimpse-keys"
_SCRIPT = Path(__file__).with_name("conversation_key.lua")
_UNBOUNDED = ("max_connections", "max_pending_requests", "max_requests")
_FILTERS = "type.googleapis.com/envoy.extensions.filters.network"
_SOCKETS = "type.googleapis.com/envoy.extensions.transport_sockets"
_KEY_FIELD = "prompt_cache_key"
_TYPED = "glimpse.v1."


def http_filter() -> dict[str, Any]:
    """Returns the filter, which is off except on routes that turn it on."""
    return {
        "name": _FILTER,
        "disabled": True,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
            "http_service": {
                "server_uri": {"uri": f"http://{_LISTENER}", "cluster": _LISTENER, "timeout": "10s"},
                "authorization_response": {"allowed_upstream_headers": {"patterns": [{"exact": KEY_HEADER}]}},
            },
            "with_request_body": {"max_request_bytes": BODY_BYTES, "allow_partial_message": True},
            "clear_route_cache": True,
            # The listener fails only where Envoy's memory is short.
            "status_on_error": {"code": "ServiceUnavailable"},
        },
    }


def turn_on() -> dict[str, Any]:
    """Returns a route's `typed_per_filter_config` that turns the filter on."""
    kind = "type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute"
    return {_FILTER: {"@type": kind, "check_settings": {}}}


def key_listener() -> dict[str, Any]:
    """Returns the listener inside Envoy that answers with a request's key."""
    lua = "type.googleapis.com/envoy.extensions.filters.http.lua.v3"
    script = {"@type": f"{lua}.Lua", "default_source_code": {"inline_string": _SCRIPT.read_text(encoding="utf-8")}}
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    host = {
        "name": _LISTENER,
        "domains": ["*"],
        "typed_per_filter_config": {"lua": {"@type": f"{lua}.LuaPerRoute", "filter_context": field_numbers()}},
        # The script answers before.
        "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 500}}],
    }
    manager = {
        "@type": f"{_FILTERS}.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": _LISTENER,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [{"name": "lua", "typed_config": script}, {"name": "router", "typed_config": router}],
    }
    return {
        "name": _LISTENER,
        "internal_listener": {},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def key_cluster() -> dict[str, Any]:
    """Returns the cluster through which the filter reaches that listener."""
    raw = {"@type": f"{_SOCKETS}.raw_buffer.v3.RawBuffer"}
    socket = {
        "@type": f"{_SOCKETS}.internal_upstream.v3.InternalUpstreamTransport",
        "transport_socket": {"name": "envoy.transport_sockets.raw_buffer", "typed_config": raw},
    }
    endpoint = {"address": {"envoy_internal_address": {"server_listener_name": _LISTENER}}}
    return {
        "name": _LISTENER,
        "transport_socket": {"name": "envoy.transport_sockets.internal_upstream", "typed_config": socket},
        "load_assignment": {"cluster_name": _LISTENER, "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]},
        "circuit_breakers": {"thresholds": [dict.fromkeys(_UNBOUNDED, 100_000)]},
    }


def bootstrap_extension() -> dict[str, Any]:
    """Returns the extension that listeners inside Envoy need."""
    kind = "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener"
    return {"name": "envoy.bootstrap.internal_listener", "typed_config": {"@type": kind}}


def grpc_paths() -> list[str]:
    """Returns the paths of RPCs whose requests may have a key."""
    return [_path(method) for method in _typed_methods()]


def rest_templates() -> set[str]:
    """Returns the path templates of REST requests that may have a key."""
    # Anthropic's requests have no key of their own: `system` tells its conversations. Ids of responses end with keys.
    telling = {_KEY_FIELD, "system", "response_id"}
    keyed = {method.full_name for method in _methods() if telling & {*method.input_type.fields_by_name}}
    bound = (method for method in _methods() if {binding_option(method).unary, method.full_name} & keyed)
    return {template for method in bound for _, template in descriptors.bindings(method)}


def field_numbers() -> dict[str, dict[str, int]]:
    """Returns for each path of `grpc_paths` the numbers with which the script reads a request."""
    return {_path(method): _numbers(method.input_type) for method in _typed_methods()}


def _numbers(request: Descriptor) -> dict[str, int]:
    fields = request.fields_by_name
    found = {name: fields[name].number for name in (_KEY_FIELD, "cache_salt", "messages") if name in fields}
    if (messages := fields.get("messages")) is None:
        return found
    return found | _message_numbers(message_type(messages))


def _message_numbers(message: Descriptor) -> dict[str, int]:
    fields: dict[str, FieldDescriptor] = dict(message.fields_by_name)
    roles = {value.name: value.number for value in enum_type(fields["role"]).values}
    return {
        "role": fields["role"].number,
        "content": fields["content"].number,
        "text": message_type(fields["content"]).fields_by_name["text"].number,
        "system": roles["ROLE_SYSTEM"],
        "developer": roles["ROLE_DEVELOPER"],
    }


def _methods() -> Iterator[MethodDescriptor]:
    return (method for service in descriptors.services() for method in service.methods)


def _typed_methods() -> Iterator[MethodDescriptor]:
    """Yields the methods that gRPC clients call and that may have a key: not those behind a facade alone."""
    return (method for method in _methods() if method.full_name.startswith(_TYPED) and _may_have_key(method))


def _may_have_key(method: MethodDescriptor) -> bool:
    return _KEY_FIELD in method.input_type.fields_by_name


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"
