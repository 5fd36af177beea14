"""Envoy's clusters of servers, and how each chooses among them."""

from collections.abc import Sequence
from typing import Any

from glimpse.gateway.address import Address, is_ip

BY_LOAD = "glimpse"
"""The cluster of requests without a key. `/health` follows it."""

BY_KEY = "glimpse-by-key"
"""Cluster of the same servers, chosen by key."""

_MAX_SHARE_PERCENT = 200
"""Percentage of the mean number of running requests with a key. The key's next server takes what exceeds it."""

_POLICIES = "type.googleapis.com/envoy.extensions.load_balancing_policies"


def may_be_several(upstreams: Sequence[Address]) -> bool:
    """Whether there may be several servers: several addresses, or a name, which may resolve to several."""
    return len(upstreams) > 1 or not all(each.host == "localhost" or is_ip(each.host) for each in upstreams)


def named(name: str, address: Address, **options: Any) -> dict[str, Any]:
    """Returns a cluster of one address, which is looked up again and again."""
    endpoint = {"endpoint": {"address": address.of_envoy}}
    return {
        "name": name,
        "type": "STRICT_DNS",
        "dns_lookup_family": "V4_PREFERRED",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        **options,
    }


def lb_policy(cluster: str, *, by_key: bool) -> dict[str, Any]:
    """Returns a cluster's `load_balancing_policy`.

    Args:
        by_key: whether there are two clusters, of requests with and without a key.
    """
    if cluster == BY_KEY:
        share = {"hash_balance_factor": _MAX_SHARE_PERCENT}
        return _policy("maglev", "maglev.v3.Maglev", consistent_hashing_lb_config=share)
    if not by_key:
        return _policy("least_request", "least_request.v3.LeastRequest")
    # Least requests would count those of this cluster only. The servers report the load of all, also of long streams.
    return _policy(
        "client_side_weighted_round_robin",
        "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin",
        enable_oob_load_report=True,
        oob_reporting_period="1s",
        blackout_period="2s",
        weight_update_period="1s",
    )


def _policy(name: str, kind: str, **options: Any) -> dict[str, Any]:
    config = {"@type": f"{_POLICIES}.{kind}", **options}
    extension = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}
    return {"policies": [{"typed_extension_config": extension}]}
