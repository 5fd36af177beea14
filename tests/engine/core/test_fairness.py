"""What one client or request takes is not felt by others: places, blocks and prompt tokens are shared."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.core.core import Core
from glimpse.engine.core.fairness import preemption
from glimpse.engine.core.fairness.preemption import NUM_PROTECTED_TOKENS
from glimpse.engine.protocol.messages import BACKGROUND_PRIORITY as BACKGROUND
from glimpse.engine.protocol.messages import FinishReason, Generate
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import answers, events_of, generate, make_core, run_until_idle


def ask(
    core: Core,
    name: str,
    num_tokens: int = 4,
    *,
    max_tokens: int = 1,
    client: str = "",
    num_completions: int = 1,
    priority: int = 0,
) -> Generate:
    """Submits a request with a prompt of its own."""
    digits = [int(digit) for digit in f"{sum(name.encode()) % 512:03o}"]
    request = generate(
        name,
        [*digits, *[1] * (num_tokens - 3)],
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        client=client,
        num_completions=num_completions,
        priority=priority,
    )
    for each in request.each():
        core.submit(each)
    return request


def first_tokens(core: Core, names: set[str], max_steps: int) -> dict[str, int]:
    """Returns the number of the step that brought each of these requests its first token."""
    steps: dict[str, int] = {}
    for number in range(1, max_steps + 1):
        for event in core.step().events:
            if event.token_ids and event.request_id in names:
                steps.setdefault(event.request_id, number)
        if len(steps) == len(names):
            break
    return steps


def served(core: Core, num_steps: int, clients: dict[str, str]) -> Counter[str]:
    """Returns how many tokens each client is sent in these steps."""
    tokens = Counter[str]()
    for _ in range(num_steps):
        for event in core.step().events:
            tokens[clients[event.request_id.partition(".")[0]]] += len(event.token_ids)
    return tokens


def test_two_wide_requests_leave_others_their_share():
    core, _ = make_core(
        num_blocks=20_000, max_model_len=9000, max_sequences=256, max_batch_tokens=2048, max_waiting=600
    )
    for name in ("wide 1", "wide 2"):
        ask(core, name, max_tokens=8000, num_completions=128)
    for _ in range(20):
        core.step()
    assert core.scheduler.num_running == 256
    others = {f"other {index}" for index in range(5)}
    for name in others:
        ask(core, name, 40, max_tokens=3)
    assert set(first_tokens(core, others, max_steps=4)) == others


def test_flood_of_streams_leaves_other_clients_their_share():
    core, _ = make_core(num_blocks=20_000, max_model_len=9000, max_sequences=64, max_batch_tokens=512, max_waiting=600)
    for index in range(500):
        ask(core, f"flood {index}", 20, max_tokens=4000, client="a")
    for _ in range(40):
        core.step()
    assert core.scheduler.num_running == 64
    others = {f"other {index}" for index in range(3)}
    for name in others:
        ask(core, name, 40, max_tokens=3, client="b")
    assert set(first_tokens(core, others, max_steps=4)) == others


def test_client_with_more_sequences_cedes_places_until_shares_are_equal():
    core, _ = make_core(num_blocks=4000, max_model_len=9000, max_sequences=8, max_batch_tokens=512)
    for index in range(12):
        ask(core, f"a{index}", max_tokens=4000, client="a")
    core.step()
    for index in range(12):
        ask(core, f"b{index}", max_tokens=4000, client="b")
    for _ in range(30):
        core.step()
    tokens = Counter(event.request_id[0] for event in core.step().events)
    assert tokens == {"a": 4, "b": 4}


def test_displaced_sequences_return_with_their_answers():
    core, _ = make_core(num_blocks=64, max_sequences=4)
    ask(core, "wide", 6, max_tokens=90, num_completions=4)
    for _ in range(10):
        core.step()
    for index in range(3):
        ask(core, f"other {index}", 6, max_tokens=20)
    steps = run_until_idle(core)
    assert sum(step.stats.num_preemptions for step in steps) >= 1
    finishes = [event.finish for step in steps for event in step.events if event.finish]
    assert finishes == [FinishReason.LENGTH] * 7
    assert core.scheduler.state.block_pool.num_used == 0


def test_displaced_sequence_is_left_alone_for_some_tokens():
    core, _ = make_core(num_blocks=400, max_sequences=2, max_model_len=600)
    ask(core, "wide", max_tokens=500, num_completions=2)
    for _ in range(5):
        core.step()
    ask(core, "0", max_tokens=1)
    assert core.step().stats.num_preemptions == 1
    for _ in range(3):
        core.step()
    for number in range(NUM_PROTECTED_TOKENS - 20):
        ask(core, str(number + 1), max_tokens=2)
        assert number == 0 or core.step().stats.num_preemptions <= 1
    preemptions = sum(core.step().stats.num_preemptions for _ in range(20))
    assert preemptions <= 1


def test_single_completions_of_one_client_do_not_displace_each_other():
    core, _ = make_core(num_blocks=400, max_sequences=4, max_model_len=400)
    for index in range(20):
        ask(core, f"{index:02}", 3 + index, max_tokens=10 + index)
    steps = run_until_idle(core)
    assert sum(step.stats.num_preemptions for step in steps) == 0
    begun = list(dict.fromkeys(event.request_id for step in steps for event in step.events))
    assert begun == sorted(begun), "first come, first served"


def test_short_prompt_of_another_client_does_not_wait_for_a_long_one():
    core, runner = make_core(num_blocks=400, max_batch_tokens=8, max_model_len=800)
    ask(core, "long", 400, client="a")
    core.step()
    ask(core, "short", 6, client="b")
    assert first_tokens(core, {"short"}, max_steps=2) == {"short": 1}
    assert [len(chunk.token_ids) for chunk in runner.plans[-1].chunks] == [6]
    core.step()
    assert [len(chunk.token_ids) for chunk in runner.plans[-1].chunks] == [8], "the long prompt goes on"


def test_long_prompts_of_two_clients_take_turns():
    core, runner = make_core(num_blocks=400, max_batch_tokens=8, max_model_len=800)
    for client in ("a", "b"):
        ask(core, client, 200, client=client)
    for _ in range(21):
        core.step()
    tokens = Counter[int]()
    for plan in runner.plans:
        for chunk in plan.chunks:
            tokens[chunk.sequence_id] += len(chunk.token_ids)
    assert abs(tokens[0] - tokens[1]) <= 8


def test_priority_does_not_overtake_other_clients():
    core, _ = make_core(max_sequences=1)
    for index in range(4):
        ask(core, f"a{index}", client="a", priority=-100)
    ask(core, "b", client="b", priority=100)
    assert first_tokens(core, {"b"}, max_steps=2) == {"b": 2}


def test_priority_orders_the_requests_of_a_client():
    core, _ = make_core(max_sequences=1)
    ask(core, "running", client="a", max_tokens=5)
    core.step()
    ask(core, "later", client="a", priority=1)
    ask(core, "sooner", client="a", priority=-1)
    begun = [event.request_id for event in events_of(core)]
    assert begun[-2:] == ["sooner", "later"]


def test_idle_time_earns_no_credit():
    core, _ = make_core(num_blocks=400, max_sequences=2, max_model_len=500)
    clients = {f"{client}{index}": client for client in "ab" for index in range(60)}
    for index in range(60):
        ask(core, f"a{index}", max_tokens=20, client="a")
    served(core, 100, clients)
    for index in range(60):
        ask(core, f"b{index}", max_tokens=20, client="b")
    tokens = served(core, 200, clients)
    assert abs(tokens["a"] - tokens["b"]) <= 100


def test_more_clients_than_places_take_turns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preemption, "NUM_SLICE_TOKENS", num_slice_tokens := 64)
    core, _ = make_core(num_blocks=4000, max_sequences=1, max_model_len=8000)
    clients = dict(zip("abc", "abc", strict=True))
    for client in "abc":
        ask(core, client, max_tokens=5000, client=client)
    tokens = served(core, 3 * 4 * num_slice_tokens, clients)
    assert max(tokens.values()) - min(tokens.values()) <= 2 * num_slice_tokens
    preemptions = sum(core.step().stats.num_preemptions for _ in range(num_slice_tokens))
    assert preemptions <= 2


backlogs = st.lists(
    st.tuples(st.integers(3, 12), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=4
)  # of each client, what it sends again and again: prompt tokens, tokens to generate, completions


@settings(max_examples=15)
@given(
    backlogs=st.lists(backlogs, min_size=2, max_size=4),
    max_sequences=st.integers(1, 6),
    max_batch_tokens=st.integers(6, 40),
    num_spare_blocks=st.integers(0, 30),
    prefix_caching=st.booleans(),
)
def test_backlogged_clients_get_equal_service(
    backlogs: list[list[tuple[int, int, int]]],
    max_sequences: int,
    max_batch_tokens: int,
    num_spare_blocks: int,
    prefix_caching: bool,
):
    core, runner = make_core(
        num_blocks=8 + num_spare_blocks,
        max_model_len=32,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
        prefix_caching=prefix_caching,
        max_waiting=10_000,
    )
    for client, requests in enumerate(backlogs):
        for index in range(30):
            num_tokens, max_tokens, num_completions = requests[index % len(requests)]
            name = f"{client}:{index}"
            ask(core, name, num_tokens, max_tokens=max_tokens, client=str(client), num_completions=num_completions)
    counters = core.scheduler.state.queue.service_by_client
    for _ in range(150):
        core.step()
        if core.scheduler.num_waiting == 0 or len(counters()) < len(backlogs):
            break
        services = counters().values()
        # A sequence has at most 32 tokens, which count once; all places may be given to one client's at a time.
        assert max(services) - min(services) <= 2 * 32 * max_sequences + max_batch_tokens
    steps = run_until_idle(core, max_steps=20_000)
    assert steps[-1].stats.num_running == 0
    assert core.scheduler.state.block_pool.num_used == 0
    assert not runner.sequences


@settings(max_examples=25)
@given(
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 3),  # steps before it
            st.integers(0, 3),  # client
            st.integers(3, 20),  # prompt tokens
            st.integers(1, 12),  # tokens to generate
            st.integers(1, 4),  # completions
            st.integers(-1, 1),  # priority
        ),
        min_size=2,
        max_size=25,
    ),
    max_sequences=st.integers(1, 5),
    max_batch_tokens=st.integers(1, 40),
    num_spare_blocks=st.integers(0, 8),
)
def test_every_completion_ends_once_within_the_work_that_there_is(
    arrivals: list[tuple[int, int, int, int, int, int]],
    max_sequences: int,
    max_batch_tokens: int,
    num_spare_blocks: int,
):
    core, _ = make_core(
        num_blocks=8 + num_spare_blocks,
        max_model_len=32,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
        max_waiting=1000,
    )
    finishes = Counter[str]()
    names: set[str] = set()

    def step() -> None:
        for event in core.step().events:
            finishes[event.request_id] += event.finish is not None

    for index, (num_steps, client, num_tokens, max_tokens, num_completions, priority) in enumerate(arrivals):
        for _ in range(num_steps):
            step()
        request = ask(
            core,
            str(index),
            num_tokens,
            max_tokens=max_tokens,
            client=str(client),
            num_completions=num_completions,
            priority=priority,
        )
        names |= {each.request_id for each in request.each()}
    num_tokens = sum((tokens + answer) * completions for _, _, tokens, answer, completions, _ in arrivals)
    for _ in range(4 * num_tokens):
        if not core.has_work:
            break
        step()
    assert finishes == dict.fromkeys(names, 1)
    assert core.scheduler.state.block_pool.num_used == 0


def test_what_is_in_the_background_leaves_all_places_to_others_at_once() -> None:
    core, _ = make_core(max_sequences=2, num_blocks=64)
    for number in range(4):
        ask(core, f"b{number}", max_tokens=200, client="batches", priority=BACKGROUND)
    for _ in range(6):
        core.step()
    urgent = {f"u{number}" for number in range(4)}
    for name in sorted(urgent):
        ask(core, name, max_tokens=8, client="user")
    # Two steps for each pair: its prompts, and then the first tokens are there; nothing of others is between them.
    alone, _ = make_core(max_sequences=2, num_blocks=64)
    for name in sorted(urgent):
        ask(alone, name, max_tokens=8, client="user")
    assert first_tokens(core, urgent, 100) == first_tokens(alone, urgent, 100)
    tokens = answers(run_until_idle(core))
    assert {name for name in tokens if name.startswith("b")} == {"b0", "b1", "b2", "b3"}


def test_blocks_are_taken_from_the_background_first() -> None:
    core, _ = make_core(max_sequences=8, num_blocks=16)
    ask(core, "b1", 24, max_tokens=200, client="batches", priority=BACKGROUND)
    for _ in range(8):
        core.step()
    ask(core, "u1", 24, max_tokens=24, client="user")
    assert first_tokens(core, {"u1"}, 3) == {"u1": 1}


def test_few_sequences_of_the_background_decode_beside_others_and_none_of_their_prompts_is_computed() -> None:
    core, runner = make_core(max_sequences=8, num_blocks=64)
    for number in range(3):
        ask(core, f"b{number}", max_tokens=300, client="batches", priority=BACKGROUND)
    for _ in range(4):
        core.step()
    ask(core, "u1", max_tokens=40, client="user")
    core.step()
    ask(core, "b9", 40, max_tokens=4, client="batches", priority=BACKGROUND)
    runner.plans.clear()
    while any(each.request_id == "u1" and each.finish is None for each in core.step().events):
        pass
    assert len(runner.plans) > 30
    # Costs are unknown here: one of them decodes beside the other, in turn.
    assert {len(plan.chunks) for plan in runner.plans} <= {1, 2}
    assert max(len(chunk.token_ids) for plan in runner.plans for chunk in plan.chunks) == 1
    assert len(answers(run_until_idle(core))["b9"]) == 4
