"""Tokens and words that a checkpoint's `generation_config.json` bans are never sampled, as in transformers."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from glimpse import SamplingParams as Params
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher, Vocabulary
from glimpse.engine.checkpoint.model_config.generation_config import unapplied_fields
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.sampling_params import (
    Grammar,
    GrammarKind,
    ReasoningBudget,
    ReasoningTags,
    SamplingParams,
)
from glimpse.engine.worker.execution.reasoning_limiter import ReasoningLimiter
from glimpse.engine.worker.execution.sampler import SequenceSampler, sample
from tests.checkpoints.files import write_json
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import needs_kernels
from tests.engine.offline.llm_inputs import load
from tests.oracles.answers import generate

PROMPT = make_prompt(1, 30)
VOCABULARY = Vocabulary(tokens=[b"a", b"b", b"<end>"], special_ids=[2])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes one that suppresses all tokens of its answer without them."""
    path = make_text_checkpoint(tmp_path_factory.mktemp("model"), "gemma4")
    harness = Harness(path)
    banned = sorted({*harness.answer(harness.begin(PROMPT), 16).answer})
    write_json(path / "generation_config.json", {"suppress_tokens": [-1, *banned, 10**6], "begin_suppress_tokens": []})
    return path


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[int]:
    reference: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    return generate(reference, PROMPT.token_ids, 16).token_ids


@pytest.mark.parametrize("on_device", [False, True])
def test_samplers_pass_over_suppressed_tokens(checkpoint: Path, expected: list[int], on_device: bool) -> None:
    harness = Harness(checkpoint, samples_on_device=on_device)
    assert harness.answer(harness.begin(PROMPT), 16).answer == expected
    assert not {*expected} & {*load_model_config(checkpoint).suppressed_token_ids}


@needs_kernels
def test_recorded_steps_pass_over_suppressed_tokens(checkpoint: Path, expected: list[int]) -> None:
    llm = load(checkpoint, block_size=32)
    sampling = Params(temperature=0, max_tokens=16, ignore_eos=True)
    (answer,) = llm.generate({"prompt_token_ids": list(PROMPT.token_ids)}, sampling)
    assert answer.outputs[0].token_ids == expected


def test_answers_have_no_bad_words_of_the_checkpoint(
    checkpoint: Path, expected: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = shutil.copytree(checkpoint, tmp_path / "model")
    config = read_json(path / "generation_config.json")
    (end, *_) = load_model_config(checkpoint).eos_token_ids
    words = [expected[3:5], expected[:1], [end]]
    write_json(path / "generation_config.json", {**config, "bad_words_ids": words, "max_time": 600})
    reference: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    other = generate(reference, PROMPT.token_ids, 16).token_ids
    with caplog.at_level(logging.WARNING):
        llm = load(path)
    assert "generation_config.json: not applied: max_time (600)" in caplog.messages
    sampling = Params(temperature=0, max_tokens=16, ignore_eos=True)
    (answer,) = llm.generate({"prompt_token_ids": list(PROMPT.token_ids)}, sampling)
    assert answer.outputs[0].token_ids == other
    assert expected[0] not in other
    suppressed = {*load_model_config(path).suppressed_token_ids}
    assert expected[0] in suppressed
    assert end not in suppressed


def test_tells_what_is_not_applied() -> None:
    fields = {"no_repeat_ngram_size": 3, "min_length": 0, "num_beams": 1, "typical_p": 0.9, "forced_eos_token_id": None}
    assert unapplied_fields(fields | {"temperature": 0.5}) == ("no_repeat_ngram_size (3)", "typical_p (0.9)")


def sampler(suppressed: list[int], **others: Any) -> SequenceSampler:
    sampling = SamplingParams(temperature=0)
    return SequenceSampler(sampling, prompt_token_ids=[], eos_token_ids=[2], suppressed_token_ids=suppressed, **others)


def test_a_grammar_that_needs_suppressed_tokens_fails() -> None:
    matcher = Matcher(GrammarCompiler(VOCABULARY), Grammar(kind=GrammarKind.REGEX, text="a"))
    own = sampler([0], matcher=matcher)
    sample(torch.tensor([[float("-inf"), 1.0, 2.0]]), [own])
    assert own.failure == "the grammar cannot be followed: no token continues or ends the answer"


def test_a_budget_of_reasoning_forces_a_suppressed_token() -> None:
    tags = ReasoningTags(opening="<", closing="b", is_open=True)
    budget = ReasoningBudget(tags=tags, max_tokens=0, closing_token_ids=(1,))
    own = sampler([1], limiter=ReasoningLimiter(budget, VOCABULARY.tokens))
    assert sample(torch.tensor([[3.0, float("-inf"), 2.0]]), [own])[0].token_id == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suppress_tokens": ["a"]}, r"'suppress_tokens': expected token ids, got \['a'\]"),
        ({"bad_words_ids": [[1], []]}, r"'bad_words_ids': expected lists of token ids of the vocabulary, got \[\[1\]"),
        ({"bad_words_ids": [[1, 10**6]]}, "'bad_words_ids': expected lists of token ids of the vocabulary, got"),
        ({"begin_suppress_tokens": [1]}, "'begin_suppress_tokens': expected none, got 1 tokens"),
    ],
)
def test_refuses_what_cannot_be_honoured(checkpoint: Path, tmp_path: Path, fields: Any, message: str) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    write_json(tmp_path / "generation_config.json", fields)
    with pytest.raises(CheckpointError, match=f"generation_config.json: {message}"):
        load_model_config(tmp_path)
