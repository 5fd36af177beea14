"""Tests for JSON Schemas with a random model: every complete output is valid.

The schemas are in `schemas/`. Tokens that end strings, lists and objects are made likelier, so that outputs end.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from glimpse.engine.protocol.messages import FinishReason
from glimpse.offline.llm import LLM, Grammar, GrammarKind, RequestOutput, SamplingParams
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS

SCHEMAS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parent / "schemas").glob("*.json"))
}
SEEDS = range(5)
CLOSING = {PLAIN_TOKENS.index(character): 4.0 for character in '"}]'}
ENDING = {len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>"): 40.0}


def sampling(schema: dict[str, Any], seed: int) -> SamplingParams:
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
    return SamplingParams(grammar=grammar, seed=seed, temperature=1.0, max_tokens=300, logit_bias=CLOSING | ENDING)


@pytest.fixture(scope="module")
def answers(tiny_checkpoint: Path) -> dict[str, list[RequestOutput]]:
    """All in one batch, by the schema's name, one for each seed."""
    llm = LLM(tiny_checkpoint, dtype="float32", device="cpu", kv_cache_bytes=64 << 20, num_threads=1)
    samplings = [sampling(schema, seed) for schema in SCHEMAS.values() for seed in SEEDS]
    outputs = iter(llm.generate(["the"] * len(samplings), samplings, progress=False))
    return {name: [next(outputs) for _ in SEEDS] for name in SCHEMAS}


def test_most_schemas_yield_complete_json(answers: dict[str, list[RequestOutput]]):
    finishes = [output.outputs[0].finish_reason for outputs in answers.values() for output in outputs]
    assert len(SCHEMAS) >= 60
    assert set(finishes) <= {FinishReason.STOP, FinishReason.LENGTH}
    assert finishes.count(FinishReason.STOP) >= 0.95 * len(finishes)


@pytest.mark.parametrize("name", SCHEMAS)
def test_complete_json_matches_its_schema(name: str, answers: dict[str, list[RequestOutput]]):
    validator = validator_for(SCHEMAS[name], default=jsonschema.Draft202012Validator)
    validator.check_schema(SCHEMAS[name])
    valid = validator(SCHEMAS[name], format_checker=validator.FORMAT_CHECKER)
    whole = [output.outputs[0] for output in answers[name] if output.outputs[0].finish_reason is FinishReason.STOP]
    for answer in whole:
        valid.validate(json.loads(answer.text))
    assert whole
