"""Parses what callers of `LLM.embed` pass."""

from collections.abc import Mapping
from dataclasses import replace

from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.offline.fields import InputError, known_fields
from glimpse.offline.prompt_inputs import OfflineRequest, parse_conversation, parse_prompt
from glimpse.server.served_model import ServedModel


def parse_input(given: object, field: str, model: ServedModel) -> OfflineRequest:
    """Parses a prompt as `LLM.generate` takes it, or a dict with the `messages` of a conversation.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(given, Mapping) or "messages" not in given:
        return parse_prompt(given, field, model)
    fields = known_fields(given, field, known=("messages", "add_generation_prompt", "chat_template_kwargs"))
    options = {"add_generation_prompt": False} | {name: each for name, each in fields.items() if name != "messages"}
    return parse_conversation(fields["messages"], f"{field}.messages", options, model, f"{field}.")


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
