"""Checks values of sampling parameters against the types and ranges that `SamplingParams` declares."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from glimpse.engine.protocol.option_values import explain
from glimpse.engine.protocol.sampling_params import SamplingParams


class SamplingValueError(ValueError):
    """A value that a sampling parameter cannot have."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"'{name}': {message}")
        self.name = name
        """The parameter, with the place in it, such as `stop[0]`."""
        self.message = message
        """"expected X, got Y"."""


def _checked_model() -> type[BaseModel]:
    hints = get_type_hints(SamplingParams, include_extras=True)
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
    parameters: dict[str, Any] = {field.name: (hints[field.name], None) for field in fields(SamplingParams)}
    return create_model("CheckedSamplingParams", __config__=config, **parameters)


_CHECKED = _checked_model()


def check_values(values: Mapping[str, object]) -> dict[str, Any]:
    """Returns the values, by the names of `SamplingParams`; those of `top_k` that keep all tokens as 0.

    Raises:
        SamplingValueError: a value has another type, or is out of range.
    """
    try:
        checked = _CHECKED.model_validate(dict(values))
    except ValidationError as error:
        wrong = error.errors()[0]
        name, *places = (place for place in wrong["loc"] if place != "[key]")
        raise SamplingValueError(f"{name}{''.join(f'[{place}]' for place in places)}", explain(wrong)) from None
    found = {name: getattr(checked, name) for name in values}
    return found | {"top_k": max(found["top_k"], 0)} if "top_k" in found else found
