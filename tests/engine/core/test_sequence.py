"""A sequence changes its status in few ways, and nothing is remembered of one that has ended."""

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest

from glimpse.engine.core.fairness.flow import Flow
from glimpse.engine.core.request import ModelSpec, make_request
from glimpse.engine.core.sequence import Sequence
from tests.engine.checking_runner import embed, generate, image_input, make_core, run_until_idle
from tests.engine.core.scheduling import sampling

CHANGES: dict[str, Callable[[Sequence], None]] = {
    "wait": lambda sequence: sequence.wait(Flow()),
    "run": lambda sequence: sequence.run(0),
    "preempt": Sequence.preempt,
    "end": Sequence.end,
}


def after(*changes: str) -> Sequence:
    model = ModelSpec(vocab_size=8, encoder_row_width=2, eos_token_ids=())
    sequence = Sequence(sequence_id=0, request=make_request(generate("0", [1]), max_model_len=8, model=model))
    for change in changes:
        CHANGES[change](sequence)
    return sequence


@pytest.mark.parametrize(
    ("changes", "legal"),
    [
        ((), {"wait", "end"}),
        (("wait",), {"run", "end"}),
        (("wait", "run"), {"preempt", "end"}),
        (("wait", "run", "preempt"), {"run", "end"}),
        (("wait", "run", "preempt", "run"), {"preempt", "end"}),
        (("wait", "end"), set[str]()),
    ],
)
def test_any_other_change_of_status_is_refused(changes: tuple[str, ...], legal: set[str]):
    for change in CHANGES.keys() - legal:
        sequence = after(*changes)
        with pytest.raises(ValueError, match=f"{sequence.status.value} cannot become"):
            CHANGES[change](sequence)
    for change in legal:
        assert after(*changes, change).status is not after(*changes).status


def sequences_in(root: object) -> list[Sequence]:
    """Returns all sequences that are reachable from an object."""
    seen, found, objects = {id(root)}, list[Sequence](), [root]
    while objects:
        each = objects.pop()
        if isinstance(each, Sequence):
            found.append(each)
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, type | FunctionType | ModuleType):
                seen.add(id(other))
                objects.append(other)
    return found


def test_nothing_is_remembered_of_sequences_that_have_ended():
    core, _ = make_core(num_blocks=10, max_model_len=24, max_draft_tokens=3, encoder_cache_tokens=8)
    for index in range(6):
        client = "ab"[index % 2]
        core.submit(generate(f"{index}", [0] * 4, image_input("cat", 0, 4), sampling=sampling(20), client=client))
    core.submit(embed("embedding", [1, 2, 1]))
    for _ in range(4):
        core.step()
    core.cancel("0")
    assert sequences_in(core.scheduler)
    steps = run_until_idle(core)
    assert sum(step.stats.num_preemptions for step in steps)
    assert not sequences_in(core)
