"""Sampling parameters as callers of `LLM` write them: in vLLM's names and forms."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any, TypedDict, Unpack

from glimpse.engine.offline.fields import InputError, known_fields
from glimpse.engine.offline.other_names import OtherName, check_name
from glimpse.engine.protocol import sampling_params
from glimpse.engine.protocol.sampling_checks import SamplingValueError, check_values
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, ReasoningBudget

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
        values = {field.name: getattr(_DEFAULTS, field.name) for field in fields(_DEFAULTS)} | _parse(given)
        if values["min_tokens"] > values["max_tokens"]:
            message = f"expected at most max_tokens ({values['max_tokens']}), got {values['min_tokens']}"
            raise InputError("min_tokens", message)
        for name, value in values.items():
            object.__setattr__(self, name, value)


_DEFAULTS = sampling_params.SamplingParams()
_NAMES = (*(field.name for field in fields(_DEFAULTS)), "structured_outputs")
_TEXTS = ("stop", "bad_words")
_LISTS = (*_TEXTS, "allowed_token_ids", "stop_token_ids")
_BEAMS = "there is no beam search"
_OTHER_NAMES: Mapping[str, OtherName] = {
    "best_of": OtherName("all answers are returned; write n", accepted=(None, 1)),
    "detokenize": OtherName("texts are always made", accepted=(True, False)),
    "early_stopping": OtherName(_BEAMS, accepted=(False,)),
    "extra_args": OtherName("there are no extension parameters", accepted=(None, {})),
    "flat_logprobs": OtherName("outputs have a list of tokens", accepted=(False,)),
    "guided_decoding": OtherName("write structured_outputs", accepted=(None,)),
    "length_penalty": OtherName(_BEAMS, accepted=(1, 1.0)),
    "logits_processors": OtherName("write logit_bias, allowed_token_ids or bad_words", accepted=(None, [])),
    "logprob_token_ids": OtherName("write logprobs", accepted=(None,)),
    "max_completion_tokens": OtherName("write max_tokens"),
    "max_new_tokens": OtherName("write max_tokens"),
    "repetition_detection": OtherName("write repetition_penalty or frequency_penalty", accepted=(None,)),
    "skip_reading_prefix_cache": OtherName("answers are the same", accepted=(None, True, False)),
    "spaces_between_special_tokens": OtherName("tokens are decoded as they are", accepted=(True, False)),
    "thinking_token_budget": OtherName("write reasoning_budget", accepted=(None, -1)),
    "top_logprobs": OtherName("write logprobs, the number of most likely tokens"),
    "truncate_prompt_tokens": OtherName("prompts are never truncated", accepted=(None,)),
    "use_beam_search": OtherName(_BEAMS, accepted=(False,)),
}
"""Parameters of vLLM and of other libraries that do not exist here."""


def parse_sampling(sampling: object, field: str) -> SamplingParams:
    """Returns sampling parameters that have been checked. Raises InputError."""
    match sampling:
        case SamplingParams():
            return sampling
        case sampling_params.SamplingParams():
            return SamplingParams(**own_values(sampling))
        case _:
            raise InputError(field, f"expected SamplingParams, got {type(sampling).__name__}")


def own_values(sampling: sampling_params.SamplingParams) -> dict[str, Any]:
    """Returns the values by their names."""
    return {field.name: getattr(sampling, field.name) for field in fields(sampling)}


def _parse(given: Mapping[str, object]) -> dict[str, Any]:
    """Returns the values, by the engine's names and in its forms."""
    values = {name: value for name, value in given.items() if check_name(name, value, _NAMES, _OTHER_NAMES, _CALL)}
    if (outputs := values.pop("structured_outputs", None)) is not None:
        if values.get("grammar") is not None:
            raise InputError("structured_outputs", "cannot be combined with grammar")
        values["grammar"] = parse_outputs(outputs)
    for name in _LISTS & values.keys():
        values[name] = _elements(values[name], one=name in _TEXTS)
    for name, (written, meant) in _FORMS.items():
        if name in values and values[name] == written:
            values[name] = meant
    try:
        return check_values(values)
    except SamplingValueError as error:
        raise InputError(error.name, error.message) from None


_CALL = "SamplingParams()"
_FORMS: Mapping[str, tuple[object, object]] = {
    "max_tokens": (None, UNLIMITED),
    "seed": (-1, None),
    "logit_bias": (None, {}),
}
"""By name, a value and what it means."""


def _elements(value: object, *, one: bool) -> object:
    """Returns a list as a tuple, which a text is one element of if `one`; the check refuses anything else."""
    if isinstance(value, str):
        return (value,) if one else value
    return () if value is None else tuple(value) if isinstance(value, Sequence | Set) else value


def parse_outputs(outputs: object) -> Grammar:
    """Returns the grammar of `StructuredOutputsParams`, or of a dict with its members. Raises InputError."""
    field, names = "structured_outputs", tuple(each.name for each in fields(StructuredOutputsParams))
    if isinstance(outputs, StructuredOutputsParams):
        outputs = {name: getattr(outputs, name) for name in names}
    given = {name: value for name, value in known_fields(outputs, field, known=names).items() if value is not None}
    match given:
        case {"json": str() as schema} if len(given) == 1:
            return Grammar(kind=GrammarKind.JSON_SCHEMA, text=schema)
        case {"json": Mapping() as schema} if len(given) == 1:
            return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
        case {"json_object": True} if len(given) == 1:
            return Grammar(kind=GrammarKind.JSON_OBJECT)
        case {"regex": str() as pattern} if len(given) == 1:
            return Grammar(kind=GrammarKind.REGEX, text=pattern)
        case {"grammar": str() as rules} if len(given) == 1:
            return Grammar(kind=GrammarKind.LARK, text=rules)
        case {"choice": [*texts]} if (
            len(given) == 1 and texts and all(isinstance(text, str) and text for text in texts)
        ):
            return Grammar(kind=GrammarKind.CHOICE, text=json.dumps(texts, ensure_ascii=False))
        case _:
            message = "expected one of json, regex, choice (a list of texts), grammar and json_object (True)"
            raise InputError(field, f"{message}, got {given or None!r}")
