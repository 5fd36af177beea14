"""Flags of servers, and the forms in which they may be written: several values of one flag, and vLLM's names.

Each becomes the form that the command reads.
"""

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Annotated, Any, get_origin

from cyclopts import Parameter
from pydantic import ValidationError

from glimpse.engine.protocol.option_values import explain
from glimpse.engine.protocol.other_names import OtherName, tell
from glimpse.engine.protocol.vllm_options import (
    NAMES_HERE,
    OPPOSITES,
    OTHER_OPTIONS,
    SPECULATIVE_CONFIG,
    read_speculative_config,
)
from glimpse.media.kind import MediaKind
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import AccessSettings, EngineSettings, ListenSettings, NameSettings, Settings
from glimpse.usage import UsageError

ServerFlags = Annotated[Settings, Parameter(name="*")]
DEFAULTS = Settings()
_NAMES_HERE: Mapping[str, str] = {
    **NAMES_HERE,
    "api_server_count": "front_ends",
    "ssl_certfile": "tls_certificate",
    "ssl_keyfile": "tls_key",
    "uvicorn_log_level": "log_level",
}
_SHORT = {"-tp": "tensor_parallel_size", "-q": "quantization"}
_OTHER_FLAGS: Mapping[str, OtherName] = {
    **OTHER_OPTIONS,
    "allowed_origins": OtherName("write --allow-origin with `glimpse up`"),
    "api_key": OtherName("write --api-keys FILE, whose lines `glimpse key` makes"),
    "chat_template_content_format": OtherName("the template says it", ("auto", "openai", "string")),
    "disable_fastapi_docs": OtherName("write --no-page with `glimpse up`", (False,)),
    "disable_uvicorn_access_log": OtherName("the gateway writes none unless told", (False, True)),
    "download_dir": OtherName("set the environment variable HF_HUB_CACHE"),
    "enable_auto_tool_choice": OtherName("models choose tools unless a request says otherwise", (False, True)),
    "enable_log_requests": OtherName("prompts are never logged", (False,)),
    "enable_prompt_tokens_details": OtherName("every usage has them", (False, True)),
    "enable_reasoning": OtherName("it is on where the chat template has reasoning", (False, True)),
    "response_role": OtherName("answers are the assistant's", ("assistant",)),
    "seed": OtherName("write seed in requests", (None, 0)),
}
_LISTS = frozenset(
    name
    for group in (EngineSettings, MediaSettings, ListenSettings, AccessSettings)
    for name, field in group.model_fields.items()
    if get_origin(field.annotation) is tuple
) | {"allow_origin", "allowed_host"}


def read_forms(flags: Sequence[str]) -> list[str]:
    """Returns the flags of a command that serves. Raises UsageError for one of vLLM's that cannot be honoured."""
    return list(chain.from_iterable(_read(name, values) for name, values in _split(flags)))


def adopt_variables(environment: MutableMapping[str, str]) -> None:
    """Sets the variables of time-outs that are set under vLLM's names alone."""
    for kind in MediaKind:
        name = f"{kind.upper()}_FETCH_TIMEOUT"
        if (value := environment.get(f"VLLM_{name}")) is not None:
            environment.setdefault(f"GLIMPSE_{name}", value)


def _split(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each flag with the values after it, of which one behind "=" is the only one; "" has those before any."""
    name, values = "", list[str]()
    for written in flags:
        if not written.startswith("-") or written[1:2].isdigit():
            values.append(written)
            continue
        yield name, values
        name, has_value, value = written.partition("=")
        values = [f"={value}"] if has_value else []
    yield name, values


def _read(name: str, values: list[str]) -> list[str]:
    """Returns a flag and what stands after it in the form that the command reads."""
    key = _SHORT.get(name, name.removeprefix("--").replace("-", "_"))
    bare = key.removeprefix("no_")
    if key in _LISTS:
        return _repeated(name, values)
    if (ours := _NAMES_HERE.get(bare)) is not None:
        is_off = (key != bare) is not (bare in OPPOSITES)
        flag = f"--{'no-' if is_off else ''}{ours.replace('_', '-')}"
        tell(f"{name} is {flag} here")
        return _joined(flag, values)
    if key == SPECULATIVE_CONFIG:
        return _speculative(name, values)
    if name in _SHORT:
        return _joined(f"--{key.replace('_', '-')}", values)
    if (other := _OTHER_FLAGS.get(bare)) is not None:
        return _needless(name, other, values, is_off=key != bare)
    return _joined(name, values)


def _joined(name: str, values: list[str]) -> list[str]:
    if values and values[0].startswith("="):
        return [name + values[0], *values[1:]]
    return [name, *values] if name else values


def _repeated(name: str, values: list[str]) -> list[str]:
    """Returns the flag once for each of its values, which may be a JSON list."""
    own, others = (values[:1], values[1:]) if values and values[0].startswith("=") else (values, [])
    each = chain.from_iterable(_elements(value.removeprefix("=")) for value in own)
    return [*(f"{name}={value}" for value in each), *others] if own else [name]


def _elements(value: str) -> Sequence[str]:
    parsed = _value(value) if value.startswith("[") else None
    return [str(element) for element in parsed] if isinstance(parsed, list) else [value]


def _speculative(name: str, values: list[str]) -> list[str]:
    """Returns the flags that a `--speculative-config` stands for. Raises UsageError for one that does not exist."""
    try:
        options = read_speculative_config(_value(values[0].removeprefix("=")) if values else "")
    except ValueError as error:
        raise UsageError(f"'{name}': {error}") from None
    return [*(f"--{option.replace('_', '-')}={value}" for option, value in options.items()), *values[1:]]


def _needless(name: str, other: OtherName, values: list[str], *, is_off: bool) -> list[str]:
    """Returns what does not belong to a flag that asks for nothing. Raises UsageError if it asks for something."""
    if other.is_switch:
        value, rest = not is_off, values
        written = name
    else:
        text, rest = (values[0].removeprefix("="), values[1:]) if values else ("", values)
        value, written = _value(text), f"{name} {text}"
    try:
        other.check(value, written)
    except ValueError as error:
        raise UsageError(f"'{name}': {error}") from None
    return rest


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def with_model(settings: Settings, model: str | None) -> Settings:
    """Returns settings with the model that was named without a flag, which comes before GLIMPSE_MODEL.

    Raises UsageError.
    """
    if model is None:
        return settings
    if settings.engine.model not in (None, model, os.environ.get("GLIMPSE_MODEL")):
        raise UsageError(f"'MODEL': expected once, got {model!r} and --model {settings.engine.model}")
    try:
        named = NameSettings(model=model).model
    except ValidationError as error:
        raise UsageError(f"'MODEL': {explain(error.errors()[0])}") from None
    engine = settings.engine.model_copy(update={"model": named})
    return settings.model_copy(update={"engine": engine})


def check_options(settings: Settings) -> None:
    """Raises UsageError for options of the engine that exclude each other."""
    if (why_not := settings.engine.options.why_not_together) is not None:
        raise UsageError(why_not)
