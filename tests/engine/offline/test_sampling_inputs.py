"""Sampling parameters in vLLM's names and forms: honoured, accepted if they ask for nothing, or refused by name."""

import json
import logging
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from glimpse.engine.protocol import sampling_params
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind
from glimpse.offline.llm import InputError, SamplingParams, StructuredOutputsParams
from glimpse.offline.sampling_inputs import UNLIMITED, SamplingOptions


def test_takes_the_engine_s_parameters() -> None:
    names = {field for field in sampling_params.SamplingParams.__dataclass_fields__ if field != "bad_word_token_ids"}
    assert names | {"structured_outputs"} == set(get_type_hints(SamplingOptions))


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("stop", "circle", ("circle",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", None, ()),
        ("bad_words", "circle", ("circle",)),
        ("bad_words", None, ()),
        ("stop_token_ids", [3, 4], (3, 4)),
        ("allowed_token_ids", None, None),
        ("allowed_token_ids", [3], (3,)),
        ("logit_bias", None, {}),
        ("logit_bias", {5: 1}, {5: 1}),
        ("max_tokens", None, UNLIMITED),
        ("top_k", -1, 0),
        ("top_p", 0, 0),
        ("seed", -1, None),
        ("temperature", 1, 1.0),
        ("temperature", 0.7, 0.7),
        ("temperature", None, 1.0),
        ("logit_bias", {5: 0.7}, {5: 0.7}),
    ],
)
def test_reads_each_form(name: str, value: Any, meant: Any) -> None:
    params = SamplingParams(**{name: value})
    assert getattr(params, name) == meant
    setattr(params, name, value)
    assert params == replace(SamplingParams(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", 0, "'n': expected an integer from 1 to 128, got 0"),
        ("n", True, "'n': expected an integer, got a boolean"),
        ("max_tokens", "many", "'max_tokens': expected an integer, got a string"),
        ("max_tokens", 1.5, "'max_tokens': expected an integer, got a number"),
        ("temperature", -1, "'temperature': expected a number from 0 to 2, got -1"),
        ("temperature", 2.5, "'temperature': expected a number from 0 to 2, got 2.5"),
        ("top_p", float("nan"), "'top_p': expected a finite number, got nan"),
        ("top_k", -2, "'top_k': expected an integer of at least -1, got -2"),
        ("stop", [""], "'stop[0]': expected a string of 1 to 4096 characters, got 0"),
        ("stop", 5, "'stop': expected a string or an array, got an integer"),
        ("stop", ["a", 5], "'stop[1]': expected a string, got an integer"),
        ("stop", ["a"] * 17, "'stop': expected at most 16 elements, got 17"),
        ("stop_token_ids", 5, "'stop_token_ids': expected an array, got an integer"),
        ("stop_token_ids", "5", "'stop_token_ids': expected an array, got a string"),
        ("stop_token_ids", [-1], "'stop_token_ids[0]': expected a token id from 0 to "),
        ("stop_token_ids", ["a"], "'stop_token_ids[0]': expected an integer, got a string"),
        ("allowed_token_ids", [], "'allowed_token_ids': expected null or at least 1 element, got 0"),
        ("logit_bias", [1], "'logit_bias': expected an object, got an array"),
        ("logit_bias", {5: 101}, "'logit_bias[5]': expected a number from -100 to 100, got 101"),
        ("logit_bias", {"five": 1}, "'logit_bias.five': expected a decimal integer as the name, got 'five'"),
        ("ignore_eos", 1, "'ignore_eos': expected a boolean, got an integer"),
        ("logprobs", -1, "'logprobs': expected an integer from 0 to 20, got -1"),
        ("min_tokens", 5000, "'min_tokens': expected at most max_completion_tokens (4096), got 5000"),
        ("best_of", 2, "'best_of': not supported. All choices are returned; use n."),
        ("guided_decoding", {"json": "{}"}, "'guided_decoding': not supported. Use structured_outputs"),
        ("guided_decoding", StructuredOutputsParams(json="{}"), "'guided_decoding': not supported. Use "),
        ("guided_decoding", object(), "'guided_decoding': not supported. Use structured_outputs"),
        ("extra_args", {"a": 1}, "'extra_args': not supported. "),
        ("flat_logprobs", True, "'flat_logprobs': not supported. "),
        ("logits_processors", [len], "'logits_processors': not supported. Use logit_bias"),
        ("logprob_token_ids", [5], "'logprob_token_ids': not supported. "),
        ("top_logprobs", 5, "'top_logprobs': write logprobs"),
        ("max_completion_tokens", 5, "'max_completion_tokens': write max_tokens"),
        ("bad_words", 5, "'bad_words': expected a string or an array, got an integer"),
        ("max_new_tokens", 5, "'max_new_tokens': not supported. Use max_completion_tokens."),
        ("structured_outputs", {"choice": "ab"}, "'structured_outputs.choice': expected an array, got a string"),
        (
            "structured_outputs",
            {"regex": "a", "json_object": True},
            "'structured_outputs.json_object': send only",
        ),
        ("structured_outputs", {"regexp": "a"}, "'structured_outputs.regexp': unknown field"),
    ],
)
def test_refuses_a_wrong_value_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).startswith(message)
    params: Any = SamplingParams()
    with pytest.raises(InputError):
        setattr(params, name, value)


def test_an_unknown_name_that_resembles_none_is_refused_without_another() -> None:
    unknown: dict[str, Any] = {"output_kind": 1}
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'output_kind'$"):
        SamplingParams(**unknown)


def test_refuses_an_unknown_name_with_the_one_that_was_meant() -> None:
    unknown: dict[str, Any] = {"max_token": 5}
    with pytest.raises(TypeError, match=r"SamplingParams\(\) got .* 'max_token'; did you mean 'max_tokens'\?"):
        SamplingParams(**unknown)


def test_says_once_what_changes_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.engine.protocol.other_names._told", set[str]())
    defaults: dict[str, Any] = {"best_of": None, "detokenize": True, "logits_processors": None, "extra_args": None}
    needless: dict[str, Any] = {"detokenize": False, "early_stopping": True, "length_penalty": 2}
    with caplog.at_level(logging.WARNING):
        assert SamplingParams(**defaults) == SamplingParams(**needless) == SamplingParams(**needless)
    assert caplog.messages == [
        "detokenize changes nothing. Texts are always made.",
        "early_stopping changes nothing. It applies to beam search, which the server does not have.",
        "length_penalty changes nothing. It applies to beam search, which the server does not have.",
    ]


@pytest.mark.parametrize(
    ("outputs", "kind", "text"),
    [
        ({"json": {"type": "object"}}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"json": '{"type": "object"}'}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"json_object": True}, GrammarKind.JSON_OBJECT, ""),
        ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"choice": ["ä", "b"]}, GrammarKind.CHOICE, json.dumps(["ä", "b"], ensure_ascii=False)),
        ({"grammar": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
    ],
)
def test_structured_outputs_are_a_grammar(outputs: dict[str, Any], kind: GrammarKind, text: str) -> None:
    for written in (outputs, StructuredOutputsParams(**outputs)):
        assert SamplingParams(structured_outputs=written).grammar == Grammar(kind=kind, text=text)
