"""Tests for reasoning in the engine: a budget ends it, and a grammar constrains what follows it."""

import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher, Vocabulary
from glimpse.engine.checkpoint.text.reasoning import REASONING_FORMATS, ReasoningParser
from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.engine.protocol.sampling_params import (
    Grammar,
    GrammarKind,
    GrammarTrigger,
    ReasoningBudget,
    ReasoningTags,
    SamplingParams,
)
from glimpse.engine.worker.execution.reasoning_limiter import ReasoningLimiter
from glimpse.engine.worker.execution.sampler import SequenceSampler, sample, sample_with_draft_tokens
from glimpse.offline.llm import LLM
from glimpse.offline.run import RequestOutput
from tests.checkpoints.tokenizer import SPECIAL_TOKENS, make_tokenizer

PLAIN = Tokenizer(make_tokenizer())
TAGGED = Tokenizer(make_tokenizer((*SPECIAL_TOKENS, "<think>", "</think>")))
EACH_TOKENIZER = pytest.mark.parametrize("tokenizer", [PLAIN, TAGGED], ids=["spelled tags", "tags as tokens"])

GRAMMARS = [
    # grammar, pattern of the answer
    (Grammar(kind=GrammarKind.JSON_OBJECT), r"\{.*\}"),
    (Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"items": {"enum": [1, 2]}, "type": "array"}'), r"\[.*\]"),
    (Grammar(kind=GrammarKind.REGEX, text=r"\n?[ab]{2,4}"), r"\n?[ab]{2,4}"),
    (Grammar(kind=GrammarKind.CHOICE, text='["yes", " no"]'), "yes| no"),
    (Grammar(kind=GrammarKind.LARK, text='start: "a" b\nb: /[0-9]{1,3}/'), r"a[0-9]{1,3}"),
]  # fmt: skip


@cache
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
    return GrammarCompiler(Vocabulary(tokens=tokens, special_ids=sorted(tokenizer.special_ids)))


def tags_of(tokenizer: Tokenizer, *, is_open: bool, strips_answer: bool = True) -> ReasoningTags:
    special = tuple((tag, tokenizer.encode(tag)[0]) for tag in ("<think>", "</think>") if tokenizer is TAGGED)
    return ReasoningTags(
        opening="<think>", closing="</think>", special_ids=special, is_open=is_open, strips_answer=strips_answer
    )


def sampler_of(
    tokenizer: Tokenizer,
    *,
    tags: ReasoningTags,
    grammar: Grammar | None = None,
    budget: int | None = None,
    seed: int = 0,
) -> SequenceSampler:
    closing = tuple(tokenizer.encode(tags.closing))
    limit = None if budget is None else ReasoningBudget(tags=tags, max_tokens=budget, closing_token_ids=closing)
    grammar = None if grammar is None else replace(grammar, reasoning=tags)
    own = compiler(tokenizer)
    return SequenceSampler(
        SamplingParams(grammar=grammar, reasoning_budget=limit, seed=seed),
        prompt_token_ids=(),
        eos_token_ids=tokenizer.encode("<|im_end|>"),
        matcher=None if grammar is None else Matcher(own, grammar),
        limiter=None if limit is None else ReasoningLimiter(limit, own.vocabulary.tokens),
    )


def random_rows(tokenizer: Tokenizer, seed: int) -> Iterator[torch.Tensor]:
    """Logits of a model that likes to end soon."""
    generator = torch.Generator().manual_seed(seed)
    endings = [tokenizer.encode(text)[0] for text in ("<|im_end|>", '"', "}", "]")]
    while True:
        row = 2 * torch.randn(tokenizer.vocab_size, generator=generator)
        row[endings] += 4
        yield row


def answer_of(tokenizer: Tokenizer, sampler: SequenceSampler, *, start: str = "", seed: int = 0) -> list[int]:
    """Samples an answer that begins with a text."""
    token_ids = tokenizer.encode(start)
    for token_id in token_ids:
        sampler.append_token(token_id)
    (end,) = tokenizer.encode("<|im_end|>")
    for row in random_rows(tokenizer, seed):
        (sampled,) = sample(row[None], [sampler])
        assert sampler.failure is None
        if sampled.token_id == end:
            return token_ids
        token_ids.append(sampled.token_id)
        assert len(token_ids) < 400
    raise AssertionError


def split(tokenizer: Tokenizer, token_ids: list[int], tags: ReasoningTags) -> tuple[str, str]:
    parser = ReasoningParser(tags)
    whole = b"".join(map(tokenizer.token_bytes, token_ids)).decode(errors="replace")
    first, last = parser.feed(whole), parser.finish()
    return first.reasoning + last.reasoning, first.text + last.text


@EACH_TOKENIZER
@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS)
@pytest.mark.parametrize("is_open", [False, True], ids=["by the model", "by the prompt"])
def test_grammar_constrains_what_follows_the_reasoning(
    tokenizer: Tokenizer, grammar: Grammar, pattern: str, is_open: bool
) -> None:
    is_json = grammar.kind in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA)
    tags = tags_of(tokenizer, is_open=is_open, strips_answer=is_json)
    for seed in range(4):
        sampler = sampler_of(tokenizer, tags=tags, grammar=grammar, budget=6, seed=seed)
        token_ids = answer_of(tokenizer, sampler, start="" if is_open else "<think>", seed=seed)
        _, text = split(tokenizer, token_ids, tags)
        assert re.fullmatch(pattern, text, re.DOTALL), text
        if is_json:
            json.loads(text)


@EACH_TOKENIZER
def test_model_may_leave_out_reasoning_that_the_prompt_has_not_begun(tokenizer: Tokenizer) -> None:
    grammar = Grammar(kind=GrammarKind.CHOICE, text='["yes", "no"]')
    tags = tags_of(tokenizer, is_open=False)
    allowed = sampler_of(tokenizer, tags=tags, grammar=grammar).allowed_tokens()
    assert allowed is not None
    first = {tokenizer.token_bytes(token_id) for token_id in allowed.nonzero()[0].tolist()}
    assert first == {b"y", b"n", b"<think>" if tokenizer is TAGGED else b"<"}
    sampler = sampler_of(tokenizer, tags=tags, grammar=grammar)
    assert split(tokenizer, answer_of(tokenizer, sampler, start="ye"), tags) == ("", "yes")


@EACH_TOKENIZER
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("is_open", [False, True], ids=["by the model", "by the prompt"])
def test_budget_ends_the_reasoning_after_exactly_as_many_tokens(
    tokenizer: Tokenizer, max_tokens: int, is_open: bool
) -> None:
    tags = tags_of(tokenizer, is_open=is_open)
    sampler = sampler_of(tokenizer, tags=tags, budget=max_tokens)
    before, closing = [] if is_open else tokenizer.encode("<think>"), tokenizer.encode("</think>")
    (word,) = tokenizer.encode("the")
    row = torch.zeros(tokenizer.vocab_size)
    row[word] = 100.0
    for token_id in before:
        sampler.append_token(token_id)
    sampled = [sample(row.clone()[None], [sampler])[0].token_id for _ in range(max_tokens + len(closing) + 2)]
    assert sampled == [word] * max_tokens + closing + [word] * 2


@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS)
def test_grammar_and_budget_hold_where_a_tag_begins_with_a_special_token(grammar: Grammar, pattern: str) -> None:
    tokenizer = Tokenizer(make_tokenizer((*SPECIAL_TOKENS, "<|channel>", "<channel|>")))
    tags = REASONING_FORMATS["gemma4"].tags_after([], tokenizer)
    assert tags is not None
    tags = replace(tags, strips_answer=grammar.kind in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA))
    allowed = sampler_of(tokenizer, tags=tags, grammar=grammar).allowed_tokens()
    assert allowed is not None
    assert allowed[tokenizer.encode("<|channel>")[0]]
    assert not allowed[tokenizer.encode("<")[0]]
    for seed in range(3):
        sampler = sampler_of(tokenizer, tags=tags, grammar=grammar, budget=6, seed=seed)
        token_ids = answer_of(tokenizer, sampler, start="<|channel>", seed=seed)
        text = tokenizer.decode(token_ids, skip_special=False)
        assert text.startswith("<|channel>thought")
        assert re.fullmatch(pattern, split(tokenizer, token_ids, tags)[1], re.DOTALL), text


def test_budget_leaves_answers_without_reasoning_alone() -> None:
    sampler = sampler_of(PLAIN, tags=tags_of(PLAIN, is_open=False), budget=0)
    for token_id in PLAIN.encode("the <think> in an answer"):
        assert sampler.allowed_tokens() is None
        sampler.append_token(token_id)


def test_forced_tag_is_certain_and_no_end() -> None:
    tags = tags_of(TAGGED, is_open=True)
    (closing,) = TAGGED.encode("</think>")
    budget = ReasoningBudget(tags=tags, max_tokens=0, closing_token_ids=(closing,))
    sampling = SamplingParams(
        reasoning_budget=budget, min_tokens=4, stop_token_ids=(closing,), logit_bias={closing: -100.0}, logprobs=1
    )
    limiter = ReasoningLimiter(budget, compiler(TAGGED).vocabulary.tokens)
    sampler = SequenceSampler(sampling, prompt_token_ids=(), eos_token_ids=(), limiter=limiter)
    (found,) = sample(torch.zeros(1, TAGGED.vocab_size), [sampler])
    assert (found.token_id, found.logprob, found.top) == (closing, 0.0, ((closing, 0.0),))


@given(drafts=st.lists(st.integers(0, TAGGED.vocab_size - 1), max_size=6), seed=st.integers(0, 20))
def test_draft_tokens_change_nothing(drafts: list[int], seed: int) -> None:
    grammar = Grammar(kind=GrammarKind.REGEX, text="[ab]{1,3}")
    tags = tags_of(TAGGED, is_open=True, strips_answer=False)
    plain, drafted = (sampler_of(TAGGED, tags=tags, grammar=grammar, budget=3, seed=seed) for _ in range(2))
    rows = torch.stack([row for row, _ in zip(random_rows(TAGGED, seed), range(len(drafts) + 1), strict=False)])
    (found,) = sample_with_draft_tokens(rows.clone(), [drafted], [drafts])
    one_by_one = [sample(rows[index].clone()[None], [plain])[0] for index in range(len(found))]
    assert found == one_by_one


def outputs_of(
    checkpoint: Path, samplings: Sequence[Any], *, speculative: Literal["off", "ngram"]
) -> list[RequestOutput]:
    """Returns what the model says after the same prompt with each of these parameters."""
    llm = LLM(
        checkpoint,
        dtype="float32",
        device="cpu",
        kv_cache_bytes=8 << 20,
        num_threads=1,
        speculative=speculative,
        backend="torch",
    )
    return llm.generate(["the the the the the"] * len(samplings), list(samplings))


def test_engine_enforces_budget_and_grammar_with_draft_tokens_as_without(tiny_checkpoint: Path) -> None:
    tags = tags_of(PLAIN, is_open=True, strips_answer=False)
    closing = tuple(PLAIN.encode("</think>"))
    grammar = Grammar(kind=GrammarKind.REGEX, text="[a-c]{3}", reasoning=tags)
    samplings = [
        SamplingParams(
            seed=seed,
            max_tokens=40,
            grammar=constraint,
            reasoning_budget=ReasoningBudget(tags=tags, max_tokens=12, closing_token_ids=closing),
        )
        for seed in range(3)
        for constraint in (None, grammar)
    ]
    found: list[list[str]] = []
    for speculative in ("off", "ngram"):
        outputs = outputs_of(tiny_checkpoint, samplings, speculative=speculative)
        found.append([output.outputs[0].text for output in outputs])
        token_ids = [list(output.outputs[0].token_ids) for output in outputs]
        assert all(tuple(own[12 : 12 + len(closing)]) == closing for own in token_ids)
    assert found[0] == found[1]
    assert all(re.fullmatch(".*</think>[a-c]{3}", text, re.DOTALL) for text in found[0][1::2])


def test_a_trigger_counts_after_the_reasoning_alone(tiny_checkpoint: Path) -> None:
    """A model that thinks may call a tool then."""
    tags = tags_of(PLAIN, is_open=True, strips_answer=False)
    begins = GrammarTrigger(texts=tuple(string.ascii_lowercase))
    follows = r"[\s\S]{0,16}[a-z][\s\S]{0,16}=[0-9]{3}"
    grammar = Grammar(kind=GrammarKind.REGEX, text=follows, reasoning=tags, trigger=begins)
    closing = tuple(PLAIN.encode("</think>"))
    budget = ReasoningBudget(tags=tags, max_tokens=12, closing_token_ids=closing)
    samplings = [
        SamplingParams(seed=seed, max_tokens=120, ignore_eos=True, grammar=grammar, reasoning_budget=budget)
        for seed in range(4)
    ]
    found: list[list[str]] = []
    for speculative in ("off", "ngram"):
        outputs = outputs_of(tiny_checkpoint, samplings, speculative=speculative)
        found.append([output.outputs[0].text for output in outputs])
    assert found[0] == found[1]
    for text in found[0]:
        reasoning, _, answer = text.partition("</think>")
        assert re.search("[a-z]", reasoning), "what is a trigger comes while it thinks"
        assert re.fullmatch(f"[^a-z]*{follows}", answer), answer
