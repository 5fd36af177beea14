"""Parses what callers of `LLM.embed` pass."""

from collections.abc import Mapping
from dataclasses import replace

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.prompt_inputs import OfflineRequest, parse_conversation, parse_prompt
from glimpse.offline.tool_inputs import parse_chat_options


def parse_input(given: object, field: str) -> OfflineRequest:
    """Parses a prompt as `LLM.generate` takes it, or a dict with the `messages` of a conversation.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(given, Mapping) or "messages" not in given:
        return parse_prompt(given, field)
    fields = known_fields(given, field, known=("messages", "add_generation_prompt", "chat_template_kwargs"))
    options = parse_chat_options(
        tools=None,
        add_generation_prompt=fields.get("add_generation_prompt", False),
        continue_final_message=False,
        template_kwargs=fields.get("chat_template_kwargs") or {},
    )
    return parse_conversation(fields["messages"], field, options)


def parse_pooling(
    default: PoolingParams,
    *,
    pooling: str | None,
    normalize: bool | None,
    dimensions: int | None,
    hidden_size: int,
) -> PoolingParams:
    """Returns the checkpoint's pooling with what the caller sets.

    Raises:
        InputError: a value is out of range.
    """
    params = default
    if pooling is not None:
        if pooling not in tuple(PoolingMode):
            raise InputError("pooling", f"expected one of {', '.join(PoolingMode)}; got {pooling!r}")
        params = replace(params, mode=PoolingMode(pooling))
    if normalize is not None:
        params = replace(params, normalize=normalize)
    if dimensions is not None and not 1 <= dimensions <= hidden_size:
        raise InputError("dimensions", f"expected 1 to {hidden_size}, the model's hidden size, got {dimensions}")
    return replace(params, dimensions=dimensions)
