"""Explains flags and environment variables that are refused: `'--max-model-len': expected X, got Y`."""

import re
from collections.abc import Iterator

import cyclopts
from cyclopts import Argument, CoercionError, CycloptsError
from pydantic import ValidationError

from glimpse.engine.protocol.option_values import explain

_BOUND = re.compile(r"Must be >= (.+)\.")
"""What cyclopts says of a number that is too small."""
_EXPECTED = {bool: "true or false", float: "a number", int: "an integer"}


def explain_flags(error: CycloptsError) -> str:
    """Returns a line for each value that is refused."""
    cause = error.__cause__
    if isinstance(cause, ValidationError) and error.argument is not None:
        return "\n".join(_explain_values(error.argument, cause))
    if isinstance(error, CoercionError) and error.token is not None:
        name = error.token.keyword or (error.argument.name if error.argument else "")
        if str(cause).startswith("expected "):  # our own converters say what they expect
            return f"'{name}': {cause}"
        if error.target_type in _EXPECTED:
            return f"'{name}': expected {_EXPECTED[error.target_type]}, got {error.token.value!r}"
    if isinstance(error, cyclopts.ValidationError) and error.argument is not None and error.argument.tokens:
        bound, token = _BOUND.fullmatch(error.exception_message), error.argument.tokens[-1]
        if bound is not None:
            return f"'{token.keyword or error.argument.name}': expected at least {bound[1]}, got {token.value!r}"
    return str(error)


def _explain_values(argument: Argument, cause: ValidationError) -> Iterator[str]:
    for error in cause.errors():
        yield f"'{_name(argument, error['loc'])}': {explain(error)}"


def _name(root: Argument, location: tuple[int | str, ...]) -> str:
    """The flag, or the environment variable, that set the value at a location in the settings."""
    candidates = [root, *root.children_recursive]
    argument = max((each for each in candidates if each.keys == location[: len(each.keys)]), key=lambda a: len(a.keys))
    tokens = [token for token in argument.tokens if token.source == "env" and token.keyword]
    return tokens[0].keyword or argument.name if tokens else argument.name
