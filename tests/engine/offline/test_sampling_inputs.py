"""Sampling parameters in vLLM's names and forms: honoured, accepted if they ask for nothing, or refused by name."""

import json
import logging
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from glimpse.engine.offline.llm import InputError, SamplingParams, StructuredOutputsParams
from glimpse.engine.offline.sampling_inputs import UNLIMITED, SamplingOptions
from glimpse.engine.protocol import sampling_params
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind


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
        ("allowed_token_ids", None, ()),
        ("logit_bias", None, {}),
        ("logit_bias", {5: 1}, {5: 1}),
        ("max_tokens", None, UNLIMITED),
        ("top_k", -1, 0),
        ("top_p", 0, 0),
        ("seed", -1, None),
        ("temperature", 1, 1.0),
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
        ("n", 0, "'n': expected at least 1, got 0"),
        ("n", True, "'n': expected an integer, got True"),
        ("max_tokens", "many", "'max_tokens': expected an integer, got 'many'"),
        ("max_tokens", 1.5, "'max_tokens': expected an integer, got 1.5"),
        ("temperature", -1, "'temperature': expected at least 0, got -1"),
        ("temperature", 2.5, "'temperature': expected at most 2, got 2.5"),
        ("temperature", None, "'temperature': expected a number, got None"),
        ("top_p", float("nan"), "'top_p': expected a finite number, got nan"),
        ("top_k", -2, "'top_k': expected at least -1, got -2"),
        ("stop", [""], "'stop[0]': expected at least 1 character, got ''"),
        ("stop", 5, "'stop': expected a list, got 5"),
        ("stop", ["a", 5], "'stop[1]': expected a string, got 5"),
        ("stop", ["a"] * 17, "'stop': expected at most 16 elements, got"),
        ("stop_token_ids", 5, "'stop_token_ids': expected a list, got 5"),
        ("stop_token_ids", "5", "'stop_token_ids': expected a list, got '5'"),
        ("stop_token_ids", ["a"], "'stop_token_ids[0]': expected an integer, got 'a'"),
        ("logit_bias", [1], "'logit_bias': expected a dict, got [1]"),
        ("logit_bias", {5: 101}, "'logit_bias[5]': expected at most 100, got 101"),
        ("logit_bias", {"5": 1}, "'logit_bias[5]': expected an integer, got '5'"),
        ("ignore_eos", 1, "'ignore_eos': expected true or false, got 1"),
        ("logprobs", -1, "'logprobs': expected at least 0, got -1"),
        ("min_tokens", 5000, "'min_tokens': expected at most max_tokens (4096), got 5000"),
        ("best_of", 2, "'best_of': all answers are returned; write n, got 2"),
        ("guided_decoding", {"json": "{}"}, "'guided_decoding': write structured_outputs, got "),
        ("max_new_tokens", 5, "'max_new_tokens': write max_tokens, got 5"),
        ("structured_outputs", {"choice": "ab"}, "'structured_outputs': expected one of json, regex, choice"),
        ("structured_outputs", {"regex": "a", "json_object": True}, "'structured_outputs': expected one of json"),
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


def test_refuses_an_unknown_name_with_the_one_that_was_meant() -> None:
    unknown: dict[str, Any] = {"max_token": 5}
    with pytest.raises(TypeError, match=r"SamplingParams\(\) got .* 'max_token'; did you mean 'max_tokens'\?"):
        SamplingParams(**unknown)


def test_says_once_what_changes_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.engine.offline.other_names._told", set[str]())
    defaults: dict[str, Any] = {"best_of": None, "detokenize": True, "logits_processors": None, "extra_args": None}
    needless: dict[str, Any] = {"detokenize": False, "spaces_between_special_tokens": False}
    with caplog.at_level(logging.WARNING):
        assert SamplingParams(**defaults) == SamplingParams(**needless) == SamplingParams(**needless)
    assert caplog.messages == [
        "detokenize=False changes nothing: texts are always made",
        "spaces_between_special_tokens=False changes nothing: tokens are decoded as they are",
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
