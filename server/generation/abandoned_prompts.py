"""Charges tenants for prompts that the engine has computed for an RPC that ended before its usage was known."""

from glimpse.engine.client.engine import OnAbandoned
from glimpse.engine.protocol.messages import TokenEvent
from glimpse.server.rpc.context import current_rpc


def charge_if_unused() -> OnAbandoned:
    """Returns what charges one prompt of the current RPC, from the last events of its abandoned completions.

    It charges nothing if the RPC reported usage: that has all prompts. Completions share their prompt, so that only the
    one for which most was computed counts.
    """
    rpc, num_charged = current_rpc(), 0

    def charge(event: TokenEvent) -> None:
        nonlocal num_charged
        num_computed = event.stats.num_computed_prompt_tokens
        if rpc.prompt_tokens is None and num_computed > num_charged:
            rpc.tenant.charge(num_computed - num_charged)
            num_charged = num_computed

    return charge


def charge_always() -> OnAbandoned:
    """Returns what charges an input of the current RPC that is missing in its usage, from its last event."""
    tenant = current_rpc().tenant
    return lambda event: tenant.charge(event.stats.num_computed_prompt_tokens)
