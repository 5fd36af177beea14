"""Charges tenants for prompts that the engine has computed for an RPC that ended before its usage was known."""

from glimpse.engine.client.engine import OnAbandoned
from glimpse.engine.protocol.messages import TokenEvent
from glimpse.server.call.context import CallContext


def charge_if_unused(call: CallContext) -> OnAbandoned:
    """Returns what charges one prompt of a call, from the last events of its abandoned completions.

    It charges nothing if the call has token counts: those have all prompts. Completions share their prompt, so that
    only the one for which most was computed counts.
    """
    num_charged = 0

    def charge(event: TokenEvent) -> None:
        nonlocal num_charged
        num_computed = event.stats.num_computed_prompt_tokens
        if call.prompt_tokens is None and num_computed > num_charged:
            call.tenant.charge(num_computed - num_charged)
            num_charged = num_computed

    return charge


def charge_always(call: CallContext) -> OnAbandoned:
    """Returns what charges an input of a call that is missing in its usage, from its last event."""
    return lambda event: call.tenant.charge(event.stats.num_computed_prompt_tokens)
