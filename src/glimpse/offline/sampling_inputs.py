"""Sampling parameters as callers of `LLM` write them: in vLLM's names and forms."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, TypedDict, Unpack

from glimpse.dialect.openai import OPENAI
from glimpse.dialect.options import descriptor_of
from glimpse.engine.protocol import sampling_params
from glimpse.engine.protocol.other_names import OtherName
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.protocol.sampling_params import Grammar, ReasoningBudget
from glimpse.offline.documents import json_text, parse
from glimpse.offline.fields import InputError, check_name
from glimpse.server.parse.completion import parse_completion
from glimpse.server.request import GenerationRequest
from glimpse.server.served_model import ServedModel
from glimpse.v1.completion_pb2 import CreateCompletionRequest
from glimpse.v1.generation_pb2 import GenerationOptions

UNLIMITED = 2**31 - 1
"""`max_tokens` of None: the core lowers it to what the context window leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Constrains the whole answer, unless `max_tokens` cuts it, by one of these."""

    json: str | Mapping[str, Any] | None = None
    """A JSON Schema that the answer matches."""
    regex: str | None = None
    """A regular expression that matches the whole answer."""
    choice: Sequence[str] | None = None
    """Texts; the answer is one of them."""
    grammar: str | None = None
    """A context-free grammar, in llguidance's dialect of Lark."""
    json_object: bool | None = None
    """True: the answer is any JSON object."""


class SamplingOptions(TypedDict, total=False):
    """Arguments of `SamplingParams`, in every form; `SamplingParams` of `engine/protocol` documents them.

    Type checkers read them from here; a test holds the names equal.
    """

    n: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    bad_words: str | Sequence[str] | None
    allowed_token_ids: Sequence[int] | None
    stop_token_ids: Sequence[int] | None
    min_tokens: int
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    grammar: Grammar | None
    reasoning_budget: ReasoningBudget | None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None


class SamplingParams(sampling_params.SamplingParams):
    """How tokens are sampled and when the answer ends; each value is checked when it is set.

    `stop` and `bad_words` are a text or several, `max_tokens` None leaves the rest of the context window, `top_k` -1
    keeps all tokens, `seed` -1 is a random one, and `structured_outputs` sets `grammar`.

    Raises:
        InputError: a value has a wrong type or is out of range, or a parameter of vLLM does not exist here.
        TypeError: there is no such parameter.
    """

    def __init__(self, **given: Unpack[SamplingOptions]) -> None:
        """Checks the values. The class documents them."""
        self._set(given)

    def __setattr__(self, name: str, value: object) -> None:
        """Changes a value, as in `params.max_tokens = 64`."""
        self._set(own_values(self) | {name: value})

    def _set(self, given: Mapping[str, object]) -> None:
        for name, value in _parse(given).items():
            object.__setattr__(self, name, value)


_ANY_MODEL = ServedModel(names=("",), vocab_size=2**31, embedding_size=1, pooling=PoolingParams(), max_media={})
"""Parameters are checked against the model itself when they are used."""
_DEFAULTS = sampling_params.SamplingParams()
_OTHER_NAMES: Mapping[str, OtherName] = {
    "max_completion_tokens": OtherName("write max_tokens"),
    "thinking_token_budget": OtherName("write reasoning_budget", accepted=(None, -1)),
    "top_logprobs": OtherName("write logprobs, the number of most likely tokens"),
}
"""Members of requests that have another name here. The dialect has the parameters of vLLM that exist nowhere."""
_FOREIGN = {member.name: member.reason for member in OPENAI.message(descriptor_of(GenerationOptions)).foreign}
_NAMES = {*(field.name for field in fields(_DEFAULTS)), "structured_outputs", *_FOREIGN}


def parse_sampling(sampling: object, field: str, model: ServedModel) -> sampling_params.SamplingParams:
    """Returns sampling parameters that have been checked against the model. Raises InputError."""
    if not isinstance(sampling, sampling_params.SamplingParams):
        raise InputError(field, f"expected SamplingParams, got {type(sampling).__name__}")
    return sampling_params.SamplingParams(**_parse(own_values(sampling), model, field))


def own_values(sampling: sampling_params.SamplingParams) -> dict[str, Any]:
    """Returns the values by their names."""
    return {field.name: getattr(sampling, field.name) for field in fields(sampling)}


def _parse(given: Mapping[str, Any], model: ServedModel = _ANY_MODEL, field: str = "") -> dict[str, Any]:
    """Returns all values, by the engine's names and in its forms, as the server parses them in a completion request."""
    values = {name: value for name, value in given.items() if check_name(name, value, _NAMES, _OTHER_NAMES, _CALL)}
    engine_values = {name: values.pop(name) for name in _ENGINE_VALUES if name in values}
    for name, (written, meant) in _FORMS.items():
        if name in values and values[name] == written:
            values[name] = meant
    request = _parse_request({"prompt": "", "max_tokens": _DEFAULTS.max_tokens, **values}, model, field)
    parsed = own_values(request.sampling) | {"n": request.num_completions} | engine_values
    if request.constraint is not None:
        if parsed["grammar"] is not None:
            raise InputError("structured_outputs", "cannot be combined with grammar")
        parsed["grammar"] = request.constraint.grammar
    # The message has single precision.
    parsed |= {name: float(values[name]) for name in _FLOATS if values.get(name) is not None}
    return parsed | {"logit_bias": {int(key): float(bias) for key, bias in (values.get("logit_bias") or {}).items()}}


_CALL = "SamplingParams()"
_ENGINE_VALUES = ("bad_word_token_ids", "grammar", "reasoning_budget")
"""Values that no document has."""
_FLOATS = [field.name for field in fields(_DEFAULTS) if isinstance(getattr(_DEFAULTS, field.name), float)]
_FORMS: Mapping[str, tuple[object, object]] = {"max_tokens": (None, UNLIMITED), "seed": (-1, None)}
"""By name, a value and what it means."""


def _parse_request(values: Mapping[str, object], model: ServedModel, field: str) -> GenerationRequest:
    """Parses the members of a completion request. Raises InputError."""
    # What is refused or changes nothing may be an object of Python.
    foreign = {name: json.loads(json_text(values[name], name, repr)) for name in values if name in _FOREIGN}
    return parse(
        {**values, **foreign},
        CreateCompletionRequest,
        partial(parse_completion, model=model, streaming=False),
        call=_CALL,
        names={name: f"{field}.{name}" for name in values} if field else {},
        reasons=_FOREIGN,
        replace=_plain,
    ).generation


def _plain(value: object) -> object:
    """Returns what JSON has for a value of another type, if that is one of sampling parameters."""
    match value:
        case StructuredOutputsParams():
            return asdict(value)
        case Set():
            return list(value)
        case _:
            return None
