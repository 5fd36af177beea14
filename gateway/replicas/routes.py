"""Envoy's routes of RPCs and of REST requests.

The transcoder turns a REST request into an RPC, which is routed again. So the routes of RPCs choose the cluster.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from glimpse.gateway import connect, descriptors
from glimpse.gateway.replicas import affinity
from glimpse.gateway.replicas.clusters import BY_KEY, BY_LOAD
from glimpse.gateway.replicas.refusals import refusal
from glimpse.identity.access import TENANT_HEADER

_IS_GRPC = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
_NO_TIMEOUT = {"timeout": "0s", "max_stream_duration": {"grpc_timeout_header_max": "0s"}, "idle_timeout": "3600s"}
"""The time without a byte is that of all streams. It is here too, because a request keeps that of its first route."""
_HAS_KEY = {"name": affinity.KEY_HEADER, "present_match": True}
_HAS_NONE = {"name": affinity.KEY_HEADER, "string_match": {"exact": affinity.NO_KEY}}


def grpc_routes(*, by_key: bool, max_pause: str) -> list[dict[str, Any]]:
    """Returns the routes of all RPCs: gRPC and grpc-web, and REST after the transcoder.

    Args:
        by_key: whether requests with a key have a cluster of their own.
        max_pause: how long a body may pause while Envoy holds its beginning; then the answer is 408.
    """
    others = {"match": _match(_IS_GRPC), "route": {"cluster": BY_LOAD, **_NO_TIMEOUT}}
    if not by_key:
        return [others]
    hashed = _hashed()
    return [
        {"match": _match(_IS_GRPC, _HAS_NONE), "route": {"cluster": BY_LOAD, **_NO_TIMEOUT}},
        {"match": _match(_IS_GRPC, _HAS_KEY), "route": hashed},
        *(_asking({"path": path, "headers": [_IS_GRPC]}, max_pause) for path in affinity.grpc_paths()),
        others,
    ]


def connect_routes(*, by_key: bool, max_pause: str) -> list[dict[str, Any]]:
    """Returns the routes of requests in Connect's protocol, which become gRPC there. Arguments as of `grpc_routes`."""
    match = {"prefix": connect.PATH_PREFIX, "headers": connect.HEADERS}
    others = connect.turned_on({"match": match, "route": {"cluster": BY_LOAD, **_NO_TIMEOUT}})
    if not by_key:
        return [others]
    keyed = [{"path": path, "headers": connect.HEADERS} for path in affinity.grpc_paths()]
    return [
        connect.turned_on({"match": match | {"headers": [*connect.HEADERS, _HAS_KEY]}, "route": _hashed()}),
        *(connect.turned_on(_asking(each, max_pause)) for each in keyed),
        others,
    ]


def _hashed() -> dict[str, Any]:
    # Tenants share no cache, so the same key of another one is another key.
    headers = (affinity.KEY_HEADER, TENANT_HEADER)
    policy = [{"header": {"header_name": name}} for name in headers]
    return {"cluster": BY_KEY, "hash_policy": policy, **_NO_TIMEOUT}


def http_routes(*, by_key: bool, max_pause: str) -> list[dict[str, Any]]:
    """Returns the routes of the API's paths and verbs. Another verb gets 405. Arguments as of `grpc_routes`."""
    keyed = affinity.rest_templates() if by_key else set[str]()
    # Templates without variables come first: their patterns are narrower.
    paths = sorted(descriptors.http_paths().items(), key=lambda item: ("{" in item[0], item[0]))
    return [
        route for template, verbs in paths for route in _routes_of_path(template, verbs, max_pause, template in keyed)
    ]


def _routes_of_path(
    template: str, verbs: Sequence[str], max_pause: str, may_have_key: bool
) -> Iterator[dict[str, Any]]:
    path = {"safe_regex": {"regex": descriptors.path_regex(template)}}
    verb = {"name": ":method", "string_match": {"safe_regex": {"regex": "|".join(verbs)}}}
    if may_have_key:
        yield _asking(path | {"headers": [verb, _HAS_KEY | {"invert_match": True}]}, max_pause)
    yield {"match": path | {"headers": [verb]}, "route": {"cluster": BY_LOAD}}
    yield refusal(path, 405, max_wait=max_pause, allow=", ".join(verbs))


def _asking(match: dict[str, Any], max_pause: str) -> dict[str, Any]:
    """Returns a route whose requests get their key, and are then routed again."""
    action = {"cluster": BY_LOAD, **_NO_TIMEOUT, "idle_timeout": max_pause}
    return {"match": match, "route": action, "typed_per_filter_config": affinity.turn_on()}


def _match(*headers: dict[str, Any]) -> dict[str, Any]:
    return {"prefix": "/", "headers": list(headers)}
