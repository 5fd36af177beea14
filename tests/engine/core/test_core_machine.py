"""Any mix of requests, cancellations and failures: each request ends exactly once and frees all its resources."""

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from glimpse.engine.core import core as core_module
from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.core.request import namespace_key
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.messages import Embed, FinishReason, Generate, MediaInput, Step
from glimpse.engine.protocol.pooling_params import PoolingMode
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, SamplingParams
from tests.engine.checking_runner import (
    EOS,
    PLACEHOLDER,
    embed,
    embedding_of,
    fingerprints,
    generate,
    image_input,
    make_core,
    next_token,
    num_pinned,
    placeholders,
    run_until_idle,
)

FAILURE = "the engine failed while it computed this request"
GRAMMARS = tuple(Grammar(kind=GrammarKind.REGEX, text=text) for text in "ab")
IMAGE_TOKENS = {"dot": 1, "cat": 3, "dog": 5, "sea": 6, "map": 8, "sky": 9}
RUNS = {"dog": ((1, 2), (4, 1)), "sea": ((0, 1), (2, 2)), "sky": ((3, 2), (5, 2))}
"""Runs of placeholder tokens of the images that also have literal ones."""

pieces = st.one_of(
    st.sampled_from(sorted(IMAGE_TOKENS)),
    st.lists(st.integers(PLACEHOLDER, 2), min_size=1, max_size=6),
)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 20),
    min_tokens=st.one_of(st.just(0), st.integers(0, 20)),  # if set, the next step waits for this step's tokens
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (3,)]),
    grammar=st.sampled_from([None, None, *GRAMMARS]),
)


def make_prompt(parts: list[str | list[int]]) -> tuple[list[int], list[MediaInput]]:
    """Returns the token ids and media of a sequence of texts and images."""
    token_ids: list[int] = []
    media: list[MediaInput] = []
    for part in parts:
        if isinstance(part, str):
            media.append(image_input(part, len(token_ids), IMAGE_TOKENS[part], RUNS.get(part, ())))
            rows = placeholders(media[-1].span)
            token_ids += [
                PLACEHOLDER if index in rows else 1 + index % 2 for index in range(len(token_ids), media[-1].span.end)
            ]
        else:
            token_ids += part
    return token_ids, media


def answer_alone(request: Generate, max_model_len: int) -> tuple[list[int], FinishReason]:
    """Returns the answer to a request that is computed alone."""
    token_ids = list(request.token_ids)
    sampling = request.sampling
    # A grammar overrides both parameters. The runner here ignores grammars.
    ignores_eos, min_tokens = (sampling.ignore_eos, sampling.min_tokens) if sampling.grammar is None else (False, 0)
    ends = {*sampling.stop_token_ids, *(() if ignores_eos else (EOS,))}
    spans = [replace(each.span, key=namespace_key(each.span.key, request.cache_salt)) for each in request.media]
    for num_generated in range(1, sampling.max_tokens + 1):
        token_ids.append(next_token(fingerprints(token_ids, spans)[-1]))
        if token_ids[-1] in ends and num_generated > min_tokens:
            return token_ids[len(request.token_ids) :], FinishReason.STOP
        if len(token_ids) == max_model_len:
            break
    return token_ids[len(request.token_ids) :], FinishReason.LENGTH


@dataclass
class SubmittedRequest:
    """A submitted request and its answer so far."""

    request: Generate | Embed
    token_ids: list[int] = field(default_factory=list[int])
    embedding: bytes = b""
    finish: FinishReason | None = None


class CoreMachine(RuleBasedStateMachine):
    """Submits, cancels, fails and steps on a core with small pools, with and without async scheduling."""

    @initialize(
        block_size=st.integers(1, 4),
        max_model_len=st.integers(8, 24),
        num_spare_blocks=st.integers(0, 8),
        max_batch_tokens=st.integers(1, 30),
        max_sequences=st.integers(1, 5),
        encoder_cache_tokens=st.integers(0, 30),
        prefix_caching=st.booleans(),
        max_decode_slowdown=st.sampled_from([1.0, 2.5]),
        ahead=st.sampled_from(["", "", "eager", "lazy"]),
        max_draft_tokens=st.sampled_from([0, 3]),
        adaptive_drafts=st.booleans(),
        uses_mtp=st.booleans(),
        num_states=st.sampled_from([0, 0, 1, 2, 3, 12]),
        window=st.sampled_from([0, 1, 2, 5, 9]),
        num_spare_sliding_blocks=st.integers(0, 8),
    )
    def build(
        self,
        block_size: int,
        max_model_len: int,
        num_spare_blocks: int,
        ahead: str,
        max_draft_tokens: int,
        window: int,
        num_spare_sliding_blocks: int,
        max_batch_tokens: int,
        **limits: Any,
    ) -> None:
        num_sliding_blocks = 0
        if window:
            least = SlidingWindow(num_tokens=window, block_size=block_size).num_blocks(max_batch_tokens)
            num_sliding_blocks = min(least, -(-max_model_len // block_size)) + num_spare_sliding_blocks
        self.max_model_len = max_model_len
        self.is_ahead = bool(ahead)
        self.num_memory_failures = 0
        self.core, self.runner = make_core(
            block_size=block_size,
            num_blocks=-(-max_model_len // block_size) + num_spare_blocks,
            max_model_len=max_model_len,
            max_waiting=20,
            max_draft_tokens=0 if ahead else max_draft_tokens,
            window=window,
            num_sliding_blocks=num_sliding_blocks,
            max_batch_tokens=max_batch_tokens,
            async_scheduling=self.is_ahead,
            lazy=ahead == "lazy",
            compile_grammar=lambda grammar: self.compiling.setdefault(grammar, Future()),
            **limits,
        )
        self.compiling: dict[Grammar, Future[object]] = {}
        self.submitted: dict[str, SubmittedRequest] = {}

    @rule(
        parts=st.lists(pieces, min_size=1, max_size=4),
        samplings=st.lists(samplings, min_size=1, max_size=3),
        priority=st.integers(0, 1),
        cache_salt=st.sampled_from(["", "salt"]),
        client=st.sampled_from(["", "a", "b"]),
        num_completions=st.integers(1, 3),
    )
    def submit(
        self,
        parts: list[str | list[int]],
        samplings: list[SamplingParams],
        priority: int,
        cache_salt: str,
        client: str,
        num_completions: int,
    ) -> None:
        for sampling in samplings:
            token_ids, media = make_prompt(parts)
            request_id = str(len(self.submitted))
            request = generate(
                request_id,
                token_ids,
                *media,
                sampling=sampling,
                priority=priority,
                cache_salt=cache_salt,
                client=client,
                num_completions=num_completions,
            )
            for completion in request.each():
                self.submitted[completion.request_id] = SubmittedRequest(completion)
                self.core.submit(completion)

    @rule(
        parts=st.lists(pieces, min_size=1, max_size=4),
        mode=st.sampled_from(PoolingMode),
        cache_salt=st.sampled_from(["", "salt"]),
        client=st.sampled_from(["", "a"]),
    )
    def submit_for_embedding(
        self, parts: list[str | list[int]], mode: PoolingMode, cache_salt: str, client: str
    ) -> None:
        token_ids, media = make_prompt(parts)
        request = embed(str(len(self.submitted)), token_ids, *media, mode=mode, cache_salt=cache_salt, client=client)
        self.submitted[request.request_id] = SubmittedRequest(request)
        self.core.submit(request)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.core.cancel(data.draw(st.sampled_from(["unknown", *self.submitted])))

    @rule(grammar=st.sampled_from(GRAMMARS))
    def finish_compiling(self, grammar: Grammar) -> None:
        """Also forgets the grammar."""
        if grammar in self.compiling:
            self.compiling.pop(grammar).set_result(None)

    @rule(num_steps=st.integers(1, 10), seconds=st.sampled_from([0.0, 0.01, 1.0]))
    def run(self, num_steps: int, seconds: float) -> None:
        self.runner.seconds = seconds
        for _ in range(num_steps):
            self.record(self.core.step())

    @rule(mistakes=st.lists(st.booleans(), min_size=1, max_size=8))
    def mispredict_tokens(self, mistakes: list[bool]) -> None:
        self.runner.mistakes = mistakes if self.is_ahead else []

    @rule(fails=st.sampled_from(["before", "after", "before for want of memory", "after for want of memory"]))
    def step_that_fails(self, fails: str) -> None:
        self.runner.fails = fails
        step = self.core.step()
        num_failed = 0 if self.runner.fails else len(self.runner.plans[-1].chunks)
        self.runner.fails = ""
        self.record(step)
        num_ended = sum(event.message == FAILURE for event in step.events)
        if fails.endswith("memory"):
            self.num_memory_failures += num_failed > 0
        if not self.is_ahead:  # else a failed launch is only noticed in the next step
            assert num_ended == (0 if fails.endswith("memory") else num_failed)

    @invariant()
    def limits_hold(self) -> None:
        scheduler = self.core.scheduler
        num_open = sum(entry.finish is None for entry in self.submitted.values())
        assert scheduler.num_running + scheduler.num_waiting <= num_open
        assert scheduler.num_running <= self.runner.limits.max_sequences

    def record(self, step: Step) -> None:
        for event in step.events:
            entry = self.submitted[event.request_id]
            assert entry.finish is None, "event after the last one"
            assert event.token_ids or event.finish
            entry.token_ids += event.token_ids
            entry.embedding = event.embedding
            entry.finish = event.finish
            assert (event.error is not None) == (event.finish is FinishReason.ERROR)
            if event.error is EngineErrorCode.OUT_OF_MEMORY:
                self.num_memory_failures -= 1  # it ends one request
            self.check(entry)

    def check(self, entry: SubmittedRequest) -> None:
        if isinstance(entry.request, Embed):
            self.check_embedding(entry, entry.request)
            return
        if len(entry.request.token_ids) >= self.max_model_len:
            assert entry.finish is FinishReason.ERROR
            return
        token_ids, finish = answer_alone(entry.request, self.max_model_len)
        assert entry.token_ids == token_ids[: len(entry.token_ids)]
        if entry.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert (entry.token_ids, entry.finish) == (token_ids, finish)

    def check_embedding(self, entry: SubmittedRequest, request: Embed) -> None:
        assert entry.finish is not None
        assert not entry.token_ids
        if len(request.token_ids) > self.max_model_len:
            assert entry.finish is FinishReason.ERROR
        has_embedding = entry.finish is FinishReason.STOP
        assert entry.embedding == (embedding_of(request) if has_embedding else b"")

    def teardown(self) -> None:
        for compiling in self.compiling.values():
            compiling.set_result(None)
        for step in run_until_idle(self.core):
            self.record(step)
        assert all(entry.finish for entry in self.submitted.values())
        assert self.num_memory_failures == 0 if not self.is_ahead else self.num_memory_failures >= 0
        assert not self.runner.launched
        assert self.core.scheduler.state.block_pool.num_used == 0
        sliding_tables = self.core.scheduler.state.sliding_tables
        assert sliding_tables is None or sliding_tables.num_used == 0
        states = self.core.scheduler.state.states
        assert states is None or states.num_held == 0
        assert num_pinned(self.core.scheduler.state.encoder_cache) == 0
        assert not self.runner.sequences


@pytest.fixture(autouse=True)
def _no_compile_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the time that the core waits for a compilation to zero."""
    monkeypatch.setattr(core_module, "_WAIT_SECONDS", 0.0)


CoreMachine.TestCase.settings = settings(stateful_step_count=30)
TestCoreMachine = CoreMachine.TestCase
