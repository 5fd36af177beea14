"""The instruction set levels of native kernels that this machine can run, and what holds at each of them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.layers.mlp import ExpertsMLP
from glimpse.engine.worker.native.library import Level, NativeError, machine_levels
from tests.engine.harness import Harness, Prompt


def _levels() -> list[Level]:
    try:
        return machine_levels()
    except NativeError:
        return []


LEVELS = _levels()
needs_kernels = pytest.mark.skipif(not LEVELS, reason="this machine cannot build or run the native kernels")
at_each_level = pytest.mark.parametrize("level", LEVELS, ids=[level.option for level in LEVELS])
OUTER_LEVELS = (*LEVELS[:1], *LEVELS[1:][-1:])
"""The lowest and the highest, for whole models of each family: `tests.engine.worker.native` compares each operation,
and a model, at each level."""
at_outer_levels = pytest.mark.parametrize("level", OUTER_LEVELS)


NEAR_TIE = 0.05
"""The last chosen expert of a token may give way to the next one whose score is so little less: rounding decides."""


def assert_stays_near_float32(
    checkpoint: Path,
    prompts: Iterable[Prompt],
    dtype: torch.dtype,
    *,
    quantization: Quantization = "none",
    tolerance: float,
    levels: Sequence[Level | None] = OUTER_LEVELS,
) -> None:
    """Compares these levels' logits after a prompt with those of torch in float32, computed with the same weights.

    Where a mixture of experts nearly chose another one for the last token, rounding may have chosen it, which is no
    error: the reference may exchange it in one layer. What the weights lose when they are quantized is not the kernels'
    error: with weights as small as those of tests it is more than all that kernels round.

    Args:
        dtype: The data type that the kernels compute in.
        quantization: Scheme of the decoder's layers, for both.
        tolerance: The bound of the root mean square of the differences, as a share of the logits' standard deviation.
        levels: None stands for torch.
    """
    exact = Harness(checkpoint, quantization=quantization)
    expected = [(prompt, [*_reference(exact, prompt)]) for prompt in prompts]
    for level in levels:
        native = Harness(checkpoint, dtype, level=level, quantization=quantization, block_size=32)
        for prompt, references in expected:
            found = native.answer(native.begin(prompt), 1).logits[0]
            errors = [float((found - logits).square().mean().sqrt() / logits.std()) for logits in references]
            assert min(errors) < tolerance, (level, errors[0])


def _reference(exact: Harness, prompt: Prompt) -> Iterator[Tensor]:
    """Yields the logits after a prompt, then those with each near tie of its last token's experts decided otherwise."""
    calls: list[Tensor] = []
    """How far the next expert is behind the last chosen one, for each layer: float32 [tokens]."""
    exchanged: int | None = None
    choose = ExpertsMLP.choose

    def choose_otherwise(mlp: ExpertsMLP, scores: Tensor) -> tuple[Tensor, Tensor]:
        number, routed = mlp.config.num_chosen, scores[:, : mlp.config.num_experts]
        top = routed.topk(number + 1, dim=-1)
        if exchanged == len(calls):
            last = top.indices[-1, -2:]
            scores = scores.clone()
            scores[-1, last] = scores[-1, last.flip(0)]
        calls.append(top.values[:, -2] - top.values[:, -1])
        return choose(mlp, scores)

    with patch.object(ExpertsMLP, "choose", choose_otherwise):
        yield exact.answer(exact.begin(prompt), 1).logits[0]
        # Exchanged experts of earlier tokens change little.
        for layer in [layer for layer, behind in enumerate(calls) if behind[-1] < NEAR_TIE]:
            exchanged = layer
            calls.clear()
            yield exact.answer(exact.begin(prompt), 1).logits[0]
