"""Helpers that submit sequences to a scheduler and describe its steps."""

from glimpse.engine.core.core import Core
from glimpse.engine.core.plan import StepPlan
from glimpse.engine.protocol.sampling_params import SamplingParams
from tests.engine.checking_runner import CheckingRunner, generate


def sampling(max_tokens: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def shape(plan: StepPlan) -> dict[int, int]:
    """Returns the number of tokens of each sequence id in a plan."""
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in plan.chunks}


def shapes(runner: CheckingRunner) -> list[dict[int, int]]:
    return [shape(plan) for plan in runner.plans]


def submit(core: Core, name: str, num_tokens: int, max_tokens: int = 1, priority: int = 0) -> None:
    """Submits a unique prompt: its first token is the last digit of its name."""
    prompt = [int(name[-1]), *[1] * (num_tokens - 1)]
    core.submit(generate(name, prompt, sampling=sampling(max_tokens), priority=priority))
