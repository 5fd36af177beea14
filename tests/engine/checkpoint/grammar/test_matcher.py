"""Tests for constrained completions: each kind of grammar, combinations, and failures."""

import json
import re
import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from glimpse.engine.checkpoint.grammar import matcher
from glimpse.engine.checkpoint.grammar.lark import GrammarError, to_lark
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler, Matcher, Vocabulary
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import FinishReason, Generate, TokenEvent
from glimpse.engine.protocol.sampling_params import (
    Grammar,
    GrammarKind,
    GrammarTrigger,
    ReasoningBudget,
    ReasoningTags,
    SamplingParams,
)
from glimpse.engine.worker.execution.sampler import SequenceSampler, sample, sample_with_draft_tokens
from glimpse.engine.worker.loading.load_engine import load_core, load_vocabulary
from glimpse.offline import llm as llm_module
from glimpse.offline.llm import LLM, InputError
from tests.checkpoints.tokenizer import PLAIN_TOKENS, SPECIAL_TOKENS, VOCAB_SIZE
from tests.waiting import eventually

EOS = len(PLAIN_TOKENS) + SPECIAL_TOKENS.index("<|im_end|>")
A, B, C = (PLAIN_TOKENS.index(letter) for letter in "abc")
ENDING = {EOS: 40.0}
LETTERS = GrammarTrigger(texts=tuple(string.ascii_lowercase))
THINKING = ReasoningTags(opening="<think>", closing="</think>", is_open=True)


@pytest.fixture(scope="module")
def vocabulary(tiny_checkpoint: Path) -> Vocabulary:
    return load_vocabulary(tiny_checkpoint, VOCAB_SIZE)


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> GrammarCompiler:
    return GrammarCompiler(vocabulary)


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    return LLM(tiny_checkpoint, dtype="float32", device="cpu", kv_cache_bytes=8 << 20, num_threads=1)


def regex(pattern: str, trigger: GrammarTrigger | None = None) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=pattern, trigger=trigger)


def plain_text(token_ids: Sequence[int]) -> str:
    """Returns the text of a completion without special tokens."""
    return "".join(PLAIN_TOKENS[token_id] for token_id in token_ids if token_id < len(PLAIN_TOKENS))


def lark(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.LARK, text=text)


def make_sampler(compiler: GrammarCompiler, grammar: Grammar | None, **params: Any) -> SequenceSampler:
    return SequenceSampler(
        SamplingParams(grammar=grammar, **params),
        prompt_token_ids=(),
        eos_token_ids=(EOS,),
        matcher=None if grammar is None else Matcher(compiler, grammar),
    )


def logits_for(**logits_by_name: float) -> Tensor:
    """Logits of 0 except for the named tokens."""
    row = torch.zeros(VOCAB_SIZE)
    for token, logit in logits_by_name.items():
        row[{"eos": EOS, "a": A, "b": B, "c": C}[token]] = logit
    return row


def sample_repeatedly(sampler: SequenceSampler, row: Tensor, num_tokens: int = 12) -> list[int]:
    """Samples from the same logits repeatedly, up to an end token."""
    token_ids: list[int] = []
    while EOS not in token_ids and len(token_ids) < num_tokens and sampler.failure is None:
        token_ids.append(sample(row.clone()[None], [sampler])[0].token_id)
    return token_ids


def texts(llm: LLM, grammar: Grammar, **params: Any) -> list[str]:
    """Generates five completions and returns the complete ones."""
    options: dict[str, Any] = {"grammar": grammar, "max_tokens": 200, "logit_bias": ENDING} | params
    samplings: list[Any] = [SamplingParams(**options, seed=seed) for seed in range(5)]  # the engine's, with triggers
    outputs = [output.outputs[0] for output in llm.generate(["the"] * 5, samplings, progress=False)]
    return [output.text for output in outputs if output.finish_reason is FinishReason.STOP]


class TestKinds:
    @pytest.mark.parametrize(
        "pattern",
        ["[a-c]{3}x?", r"\d{4}-\d{2}", "(yes|no), (a|the) [a-z]{1,6}", r"a/b\\/c\.", "ü+ß", "a|", "", r"[^\n]{5}\n"],
    )
    def test_completion_matches_the_regular_expression(self, llm: LLM, pattern: str):
        found = texts(llm, regex(pattern))
        assert len(found) == 5
        assert all(re.fullmatch(pattern, text) for text in found)

    def test_completion_is_exactly_one_of_the_choices(self, llm: LLM):
        choices = ["yes", "no", "not at all", 'a "quote"', "50% [of] (it)\\n", "größer\n", "\U0001f642", "."]
        grammar = Grammar(kind=GrammarKind.CHOICE, text=json.dumps(choices))
        found = texts(llm, grammar) + texts(llm, grammar, temperature=2.0)
        assert len(found) == 10
        assert set(found) <= set(choices)

    def test_completion_is_a_json_object(self, llm: LLM):
        closing = {PLAIN_TOKENS.index(character): 6.0 for character in '"}]'}
        found = texts(llm, Grammar(kind=GrammarKind.JSON_OBJECT), logit_bias=ENDING | closing)
        assert found
        assert all(isinstance(json.loads(text), dict) for text in found)

    @pytest.mark.parametrize(
        ("grammar", "pattern"),
        [
            ('start: "the " noun\nnoun: /[a-z]{2,4}/', "the [a-z]{2,4}"),
            ('start: item ("," item){1,2}\nitem: "x" | "(" item ")"', r"[x(),]+"),
            ('start: "<call>" %json {"const": 1} "</call>"  # %json {', "<call>1</call>"),
            ('start: "a" <|im_start|> "b"', "ab"),
            ("// two\nstart: WORD\nWORD: /[%]json/ | /a\\/b/", "%json|a/b"),
            ("%llguidance {}\nstart: A+\nA: /[ab]/", "[ab]+"),
        ],
    )
    def test_completion_matches_the_lark_grammar(self, llm: LLM, grammar: str, pattern: str):
        found = texts(llm, lark(grammar))
        assert found
        assert all(re.fullmatch(pattern, text) for text in found)

    def test_json_has_bounded_white_space_and_one_spelling_of_keys(self, compiler: GrammarCompiler):
        matcher = Matcher(compiler, Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type": "array"}'))
        matcher.allowed()
        matcher.accept(PLAIN_TOKENS.index("["))
        blank, backslash = PLAIN_TOKENS.index("Ġ"), PLAIN_TOKENS.index("\\")
        assert matcher.allowed()[blank]
        matcher.accept(blank)
        assert not matcher.allowed()[blank]
        matcher.accept(PLAIN_TOKENS.index('"'))
        matcher.allowed()
        matcher.accept(backslash)
        assert not matcher.allowed()[PLAIN_TOKENS.index("u")]


class TestVocabulary:
    def test_vocabulary_equals_the_detokenizers(
        self, tiny_checkpoint: Path, vocabulary: Vocabulary, compiler: GrammarCompiler
    ):
        tokenizer = load_tokenizer(tiny_checkpoint)
        anything = Matcher(compiler, regex("(?s:.*)")).allowed()
        assert len(anything) == len(vocabulary.tokens) == VOCAB_SIZE
        starts_text = [_starts_utf8(tokenizer.token_bytes(token_id)) for token_id in range(len(PLAIN_TOKENS))]
        assert anything.tolist() == starts_text + [False] * (VOCAB_SIZE - len(PLAIN_TOKENS))


def _starts_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


class TestEnds:
    @pytest.mark.parametrize(
        ("pattern", "params", "expected"),
        [
            ("a{2,5}", {}, [A, A, EOS]),
            ("a{2,5}", {"min_tokens": 4}, [A, A, A, A, EOS]),
            ("a{2,5}", {"ignore_eos": True}, [A, A, A, A, A, EOS]),
            ("a{2}", {"min_tokens": 4}, [A, A, EOS]),
            ("a{2}", {"min_tokens": 4, "ignore_eos": True}, [A, A, EOS]),
            ("a{2}", {"logit_bias": {EOS: 100.0, B: 100.0}}, [A, A, EOS]),
            ("(ab)?c", {"logit_bias": {B: 100.0}, "frequency_penalty": 2.0}, [A, B, C, EOS]),
            ("", {}, [EOS]),
        ],
    )
    def test_completion_ends_where_its_grammar_ends(
        self, compiler: GrammarCompiler, pattern: str, params: dict[str, Any], expected: list[int]
    ):
        """The model prefers to end, else to generate a."""
        sampler = make_sampler(compiler, regex(pattern), temperature=0.0, **params)
        assert sample_repeatedly(sampler, logits_for(eos=9.0, a=8.0)) == expected

    def test_stop_token_may_end_a_completion(self, compiler: GrammarCompiler):
        sampler = make_sampler(compiler, regex("a{2}[abc]*"), temperature=0.0, stop_token_ids=(B,))
        assert sample_repeatedly(sampler, logits_for(b=9.0, a=8.0), num_tokens=3) == [A, A, B]

    def test_grammar_that_requires_a_stop_token_fails(self, compiler: GrammarCompiler):
        sampler = make_sampler(compiler, regex("aab"), temperature=0.0, stop_token_ids=(B,))
        sample_repeatedly(sampler, logits_for())
        assert sampler.failure == "the grammar cannot be followed: no token continues or ends the answer"


class TestSampling:
    def test_logprobs_cover_only_allowed_tokens(self, compiler: GrammarCompiler):
        sampler = make_sampler(compiler, regex("[ab]c"), temperature=0.0, logprobs=5)
        first, second = (sample(logits_for(a=2.0, b=1.0, c=9.0)[None], [sampler])[0] for _ in range(2))
        expected = torch.tensor([2.0, 1.0]).log_softmax(dim=-1).tolist()
        assert [token_id for token_id, _ in first.top] == [A, B]
        assert [logprob for _, logprob in first.top] == pytest.approx(expected)
        assert second.top == ((C, 0.0),)

    def test_sampling_never_leaves_the_grammar(self, compiler: GrammarCompiler):
        for seed in range(20):
            params: dict[str, Any] = {"seed": seed, "top_k": seed % 4, "top_p": 0.1 + seed / 25, "min_p": seed / 100}
            sampler = make_sampler(compiler, regex("[abc]{11}"), **params, temperature=1.5)
            assert set(sample_repeatedly(sampler, torch.randn(VOCAB_SIZE) * 3)) <= {A, B, C, EOS}

    def test_all_kinds_of_sequences_share_a_batch(self, compiler: GrammarCompiler):
        kinds: list[tuple[Grammar | None, dict[str, Any]]] = [
            (None, {"temperature": 0.0}),
            (regex("[abc]+"), {"seed": 1}),
            (None, {"seed": 2}),
            (regex("[ab]+"), {"temperature": 0.0}),
            (None, {"seed": 3, "min_tokens": 3}),
        ]
        rows = torch.randn(len(kinds), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
        together = [make_sampler(compiler, grammar, **params) for grammar, params in kinds]
        alone = [make_sampler(compiler, grammar, **params) for grammar, params in kinds]
        for _ in range(5):
            expected = [sample(row.clone()[None], [own])[0] for row, own in zip(rows, alone, strict=True)]
            assert sample(rows.clone(), together) == expected

    @pytest.mark.parametrize("draft_tokens", [[A, B, A], [B, A, B], [A, A, A], [EOS, A, A], [C, C, C]])
    def test_draft_tokens_change_nothing(self, compiler: GrammarCompiler, draft_tokens: list[int]):
        rows = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
        guided, plain = (make_sampler(compiler, regex("[ab]{2,9}"), seed=5) for _ in range(2))
        [samples] = sample_with_draft_tokens(rows.clone(), [guided], [draft_tokens])
        expected = [sample(row.clone()[None], [plain])[0] for row in rows[: len(samples)]]
        assert samples == expected
        assert sample_repeatedly(guided, rows[0]) == sample_repeatedly(plain, rows[0])


class TestFailures:
    def test_grammar_that_does_not_compile_fails_alone(self, compiler: GrammarCompiler):
        bad, good, free = (make_sampler(compiler, each, temperature=0.0) for each in (regex("("), regex("ab"), None))
        samples = sample(torch.stack([logits_for(c=9.0)] * 3), [bad, good, free])
        assert bad.failure == "the grammar cannot be followed: unclosed group"
        assert (good.failure, free.failure) == (None, None)
        assert [each.token_id for each in samples[1:]] == [A, C]

    def test_invalid_grammar_is_refused_every_time(self, compiler: GrammarCompiler):
        for _ in range(3):
            with pytest.raises(GrammarError, match="expected JSON: "):
                compiler.begin(Grammar(kind=GrammarKind.JSON_SCHEMA, text="{"))

    def test_completion_survives_an_exhausted_shared_lexer(
        self, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
    ):
        """Completions add states to a shared lexer until it is full; each alone needs few."""
        small = matcher.LLParserLimits(max_lexer_states=400, verbose_errors=False)
        monkeypatch.setattr(matcher, "_LIMITS", small)
        words = [f"{number * 7919 % 10_000:04d}" * 6 for number in range(60)]
        choice = Grammar(kind=GrammarKind.CHOICE, text=json.dumps(words))
        compiler = GrammarCompiler(vocabulary)
        texts = ["".join(PLAIN_TOKENS[token] for token in _draw(Matcher(compiler, choice), seed)) for seed in range(60)]
        assert set(texts) <= set(words)
        assert len(set(texts)) > 20


class TestManyGrammars:
    """More grammars than the compiler keeps for requests to come."""

    def test_each_is_compiled_once_for_its_sequence(self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
        compiled, compile_grammar = list[str](), GrammarCompiler._compile  # pyright: ignore[reportPrivateUsage]

        def compile_told(compiler: GrammarCompiler, grammar: Grammar) -> Any:
            compiled.append(grammar.text)
            return compile_grammar(compiler, grammar)

        monkeypatch.setattr(GrammarCompiler, "_compile", compile_told)
        monkeypatch.setattr(matcher, "_NUM_COMPILED", 2)
        patterns = [f"ab{{{count}}}" for count in range(1, 9)]
        _, token_ids, _ = run(load(tiny_checkpoint), [SamplingParams(grammar=regex(each)) for each in patterns])
        assert all(re.fullmatch(each, plain_text(ids)) for each, ids in zip(patterns, token_ids, strict=True))
        assert sorted(compiled) == patterns

    def test_one_that_is_needed_now_does_not_wait_behind_others(
        self, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
    ):
        compiled, others = compiling_slowly(monkeypatch)
        compiler = GrammarCompiler(vocabulary)
        waiting = [compiler.compile(regex(pattern)) for pattern in ("first", "second", "third", "needed")]
        assert not compiler.begin(regex("needed")).is_error()
        assert compiled == ["needed"]
        others.set()
        assert not any(each.result().is_error() for each in waiting)
        assert sorted(compiled) == ["first", "needed", "second", "third"]

    def test_one_that_two_threads_need_is_compiled_once_for_both(
        self, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
    ):
        compiled, others = compiling_slowly(monkeypatch)
        compiler = GrammarCompiler(vocabulary)
        waiting = [compiler.compile(regex(pattern)) for pattern in ("first", "second")]
        with ThreadPoolExecutor() as threads:
            first = threads.submit(compiler.begin, regex("needed"))
            is_asked_for = partial(compiler._held.__contains__, regex("needed"))  # pyright: ignore[reportPrivateUsage]
            assert eventually(is_asked_for)
            assert not compiler.begin(regex("needed")).is_error()
            assert not first.result().is_error()
            assert compiled == ["needed"]
            others.set()
        assert not any(each.result().is_error() for each in waiting)


def compiling_slowly(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Event]:
    """Returns the grammars that were compiled, in order, and an event that all but "needed" wait for."""
    compiled, others = list[str](), Event()
    compile_grammar = GrammarCompiler._compile  # pyright: ignore[reportPrivateUsage]

    def compile_slowly(compiler: GrammarCompiler, grammar: Grammar) -> Any:
        if grammar.text != "needed":
            others.wait(60)
        compiled.append(grammar.text)
        return compile_grammar(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "_compile", compile_slowly)
    return compiled, others


def _draw(matcher: Matcher, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    token_ids: list[int] = []
    while (allowed := torch.from_numpy(matcher.allowed())).any():
        token_ids.append(int(torch.multinomial(allowed.float(), 1, generator=generator)))
        matcher.accept(token_ids[-1])
    return token_ids


def run(core: Core, samplings: Sequence[SamplingParams]) -> tuple[list[TokenEvent], list[list[int]], int]:
    """Returns the last event and the tokens of each request, and the number of preemptions."""
    for index, sampling in enumerate(samplings):
        core.submit(Generate(request_id=str(index), token_ids=[A, B, C] * 5, sampling=sampling))
    last: dict[str, TokenEvent] = {}
    token_ids: list[list[int]] = [[] for _ in samplings]
    num_preemptions = 0
    while core.has_work:
        step = core.step()
        num_preemptions += step.stats.num_preemptions
        for event in step.events:
            token_ids[int(event.request_id)] += event.token_ids
            last[event.request_id] = event
    return [last[str(index)] for index in range(len(samplings))], token_ids, num_preemptions


def load(path: Path, **options: Any) -> Core:
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", num_threads=1, **options)
    return load_core(config, on_progress=lambda _stage, _fraction: None).core


class TestCore:
    SAMPLINGS = (
        *(
            SamplingParams(grammar=each, seed=seed, max_tokens=90, logit_bias=ENDING, ignore_eos=True)
            for seed, each in enumerate((regex("([a-c]{5} ){12}"), None, regex("(the |a )+"), regex("[0-9]{60}"), None))
        ),
        SamplingParams(
            seed=5,
            max_tokens=90,
            grammar=Grammar(kind=GrammarKind.REGEX, text="([a-c]{5} ){6}", reasoning=THINKING),
            reasoning_budget=ReasoningBudget(
                tags=THINKING, max_tokens=30, closing_token_ids=tuple(map(PLAIN_TOKENS.index, "</think>"))
            ),
        ),
    )

    def test_preemption_and_draft_tokens_change_no_completion(self, tiny_checkpoint: Path):
        _, expected, num_preemptions = run(load(tiny_checkpoint, kv_cache_bytes=8 << 20), self.SAMPLINGS)
        assert num_preemptions == 0
        _, scarce, num_preemptions = run(load(tiny_checkpoint, kv_cache_bytes=10 << 14), self.SAMPLINGS)
        assert num_preemptions > 0
        assert scarce == expected
        _, drafted, _ = run(load(tiny_checkpoint, kv_cache_bytes=8 << 20, speculative="ngram"), self.SAMPLINGS)
        assert drafted == expected

    @pytest.mark.parametrize("speculative", ["off", "ngram"])
    def test_grammar_with_a_trigger_begins_with_it(self, tiny_checkpoint: Path, speculative: str):
        digits = regex("[^a-z]*[a-z]{1,9}[0-9]{3}", LETTERS)
        samplings = [
            SamplingParams(seed=seed, max_tokens=99, ignore_eos=True, grammar=digits, logit_bias={A: 3.0})
            for seed in range(6)
        ]
        core = load(tiny_checkpoint, kv_cache_bytes=8 << 20, speculative=speculative)
        events, token_ids, _ = run(core, samplings)
        assert [event.finish for event in events] == [FinishReason.STOP] * len(samplings)
        assert all(re.fullmatch("[^a-z]*[a-z]{1,9}[0-9]{3}", text) for text in map(plain_text, token_ids))

    def test_unmatched_trigger_leaves_the_answer_free(self, tiny_checkpoint: Path):
        sampling = SamplingParams(seed=1, max_tokens=60, ignore_eos=True, grammar=regex("[0-9]", LETTERS))
        (event,), (token_ids,), _ = run(load(tiny_checkpoint, kv_cache_bytes=8 << 20), [sampling])
        assert event.finish is FinishReason.LENGTH
        assert re.search("[a-z].*[a-z]", plain_text(token_ids))

    def test_unconstrained_requests_do_not_wait_for_compilation(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ):
        is_time = Event()

        def to_lark_late(grammar: Grammar) -> str:
            assert is_time.wait(60)
            return to_lark(grammar)

        monkeypatch.setattr(matcher, "to_lark", to_lark_late)
        core = load(tiny_checkpoint, kv_cache_bytes=8 << 20)
        for name, grammar in (("bound", regex("[ab]{3}")), ("free", None)):
            sampling = SamplingParams(grammar=grammar, max_tokens=3, ignore_eos=True)
            core.submit(Generate(request_id=name, token_ids=[A], sampling=sampling))
        first = [event.request_id for _ in range(3) for event in core.step().events]
        is_time.set()
        assert first == ["free"] * 3
        token_ids: list[int] = []
        while core.has_work:
            token_ids += (token_id for event in core.step().events for token_id in event.token_ids)
        assert len(token_ids) == 3
        assert set(token_ids) <= {A, B}

    def test_complete_output_stops_and_truncated_output_reports_length(self, tiny_checkpoint: Path):
        samplings = [
            SamplingParams(grammar=regex("[abc]{5}"), seed=0, min_tokens=50, max_tokens=60),
            SamplingParams(grammar=regex("[abc]{5}"), seed=0, ignore_eos=True),
            SamplingParams(grammar=regex("[abc]{50}"), seed=0, max_tokens=7),
        ]
        last, token_ids, _ = run(load(tiny_checkpoint, kv_cache_bytes=8 << 20), samplings)
        assert [event.finish for event in last] == [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH]
        assert [len(own) for own in token_ids] == [6, 6, 7]

    def test_failing_grammar_fails_only_its_own_request(self, tiny_checkpoint: Path):
        samplings = [
            SamplingParams(grammar=regex("[abc]{5}"), seed=0),
            SamplingParams(grammar=regex("a(?=b)"), seed=0),
            SamplingParams(grammar=Grammar(kind=GrammarKind.CHOICE, text="7"), seed=0),
            SamplingParams(seed=0, max_tokens=5),
        ]
        core = load(tiny_checkpoint, kv_cache_bytes=8 << 20)
        last, _, _ = run(core, samplings)
        finishes = [FinishReason.STOP, FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH]
        assert [event.finish for event in last] == finishes
        assert [event.error for event in last] == [None, *[EngineErrorCode.UNSUPPORTED] * 2, None]
        assert last[1].message.startswith("the grammar cannot be followed: look-around")
        assert last[2].message == "the grammar cannot be followed: expected a JSON list of strings"
        assert core.scheduler.state.block_pool.num_used == 0


def test_offline_api_enforces_what_it_can_of_a_schema_and_logs_the_rest_once(
    llm: LLM, caplog: pytest.LogCaptureFixture
):
    text = '{"type": "array", "uniqueItems": true, "items": {"const": 7}, "minItems": 2, "maxItems": 2}'
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, text=text)
    # Rather than white space, of which there may be any amount.
    likely = {PLAIN_TOKENS.index(each): 40.0 for each in "[7,]"}
    sampling = llm_module.SamplingParams(grammar=grammar, max_tokens=20, logit_bias=likely)
    for _ in range(2):
        (answer,) = llm.chat([{"role": "user", "content": "the"}], sampling)
        assert json.loads(answer.outputs[0].text) == [7, 7]
    (line,) = [line for line in caplog.messages if "uniqueItems" in line]
    assert line.startswith("sampling_params.grammar: the keyword 'uniqueItems' is not enforced")


def test_offline_api_refuses_invalid_grammars(llm: LLM):
    schema = Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"properties": {"a": {"$ref": "#/$defs/b"}}}')
    with pytest.raises(InputError, match=r"sampling_params.grammar': #/properties/a: '\$ref' to '#/\$defs/b', which"):
        llm.chat([{"role": "user", "content": "the"}], llm_module.SamplingParams(grammar=schema))
