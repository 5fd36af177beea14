"""Requests wait while their own grammars compile, and only they do."""

from concurrent.futures import Future

import pytest

from glimpse.engine.core import core as core_module
from glimpse.engine.core.core import Core
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.messages import FinishReason, Step
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, SamplingParams
from tests.engine.checking_runner import answers, generate, make_core, run_until_idle

SLOW = Grammar(kind=GrammarKind.REGEX, text="slow")
BOUND = SamplingParams(max_tokens=2, grammar=SLOW)
FREE = SamplingParams(max_tokens=9, ignore_eos=True)


@pytest.fixture(autouse=True)
def _no_compile_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the time that the core waits for a compilation to zero."""
    monkeypatch.setattr(core_module, "_WAIT_SECONDS", 0.0)


@pytest.fixture
def compiling() -> Future[object]:
    """The future of the slow grammar's compilation."""
    return Future()


def core_with(compiling: Future[object], *, async_scheduling: bool = False, max_waiting: int = 100) -> Core:
    core, _ = make_core(
        compile_grammar={SLOW: compiling}.__getitem__, async_scheduling=async_scheduling, max_waiting=max_waiting
    )
    return core


def finishes(steps: list[Step]) -> dict[str, list[FinishReason]]:
    """Returns the finish reasons of each request id."""
    ends: dict[str, list[FinishReason]] = {}
    for event in (event for step in steps for event in step.events):
        if event.finish:
            ends.setdefault(event.request_id, []).append(event.finish)
    return ends


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_other_requests_continue_while_a_grammar_compiles(compiling: Future[object], async_scheduling: bool):
    core = core_with(compiling, async_scheduling=async_scheduling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    core.submit(generate("free", [2, 1], sampling=FREE))
    steps = [core.step() for _ in range(4)]
    assert len(answers(steps)["free"]) == 4
    assert "bound" not in answers(steps)
    assert {(step.stats.num_running, step.stats.num_waiting) for step in steps} == {(1, 1)}
    compiling.set_result(None)
    steps += run_until_idle(core)
    assert finishes(steps) == {"bound": [FinishReason.LENGTH], "free": [FinishReason.LENGTH]}
    alone, _ = make_core()
    alone.submit(generate("bound", [1, 2], sampling=BOUND))
    assert answers(run_until_idle(alone))["bound"] == answers(steps)["bound"]


def test_arrival_order_holds_after_compilation(compiling: Future[object]):
    core, runner = make_core(compile_grammar={SLOW: compiling}.__getitem__, max_sequences=1)
    for name in ("free", "bound", "late"):
        core.submit(generate(name, [1], sampling=BOUND if name == "bound" else SamplingParams(max_tokens=2)))
    core.step()
    compiling.set_result(None)
    assert list(finishes(run_until_idle(core))) == ["free", "bound", "late"]
    assert runner.plans


def test_compiled_grammar_is_not_waited_for(compiling: Future[object]):
    compiling.set_result(None)
    core = core_with(compiling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    assert answers([core.step()])["bound"]


def test_grammar_that_fails_to_compile_goes_to_the_runner(compiling: Future[object]):
    core = core_with(compiling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    assert core.step().events == []
    compiling.set_exception(ValueError("no grammar"))
    assert finishes(run_until_idle(core)) == {"bound": [FinishReason.LENGTH]}


def test_idle_core_waits_for_the_grammar(compiling: Future[object], monkeypatch: pytest.MonkeyPatch):
    waits: list[float] = []

    def wait(futures: object, *, timeout: float, return_when: str) -> None:
        del futures, return_when
        waits.append(timeout)
        compiling.set_result(None)

    monkeypatch.setattr(core_module, "_WAIT_SECONDS", 0.5)
    monkeypatch.setattr(core_module, "wait", wait)
    core = core_with(compiling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    assert core.has_work
    assert answers([core.step()])["bound"]
    assert waits == [0.5]


def test_request_cancelled_during_compilation_ends_once(compiling: Future[object]):
    core = core_with(compiling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    core.cancel("bound")
    steps = run_until_idle(core)
    compiling.set_result(None)
    assert not core.has_work
    assert finishes(steps) == {"bound": [FinishReason.CANCELLED]}
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    assert finishes(run_until_idle(core)) == {"bound": [FinishReason.LENGTH]}


def test_shutdown_ends_request_whose_grammar_never_compiles(compiling: Future[object]):
    core = core_with(compiling)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    assert finishes([core.shutdown()]) == {"bound": [FinishReason.CANCELLED]}
    assert not core.has_work


def test_compiling_requests_count_as_waiting(compiling: Future[object]):
    core = core_with(compiling, max_waiting=1)
    core.submit(generate("bound", [1, 2], sampling=BOUND))
    core.submit(generate("free", [1, 2], sampling=FREE))
    [event] = core.step().events
    assert (event.request_id, event.error) == ("free", EngineErrorCode.OVERLOADED)
