"""Tokens that are not sampled are computed as far as later ones read what is stored of them."""

from pathlib import Path

import pytest
from torch import Tensor

from glimpse.engine.worker.layers.ops import MLP, Norm, TorchOps
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.harness import Harness, make_prompt


class CountingOps(TorchOps):
    """Notes how many tokens each MLP computes."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def norm_mlp_add(self, hidden: Tensor, norm: Norm, mlp: MLP, *, residual: bool = True) -> Tensor:
        self.counts.append(len(hidden))
        return super().norm_mlp_add(hidden, norm, mlp, residual=residual)


@pytest.mark.parametrize(
    ("family", "num_storing", "num_layers"),
    [("qwen3", 2, 2), pytest.param("gemma4", 4, 6, id="gemma4, whose last two layers read what others have stored")],
)
def test_layers_compute_what_something_reads(tmp_path: Path, family: str, num_storing: int, num_layers: int) -> None:
    ops = CountingOps()
    harness = Harness(make_text_checkpoint(tmp_path, family), ops=ops)
    first, second = (harness.begin(make_prompt(seed, 40)) for seed in (1, 2))
    harness.step((first, 40))
    assert ops.counts == [40] * (num_storing - 1) + [1] * (num_layers - num_storing + 1)
    ops.counts.clear()
    harness.step((first, 1), (second, 30))
    assert ops.counts == [31] * (num_storing - 1) + [1] * (num_layers - num_storing + 1)
    ops.counts.clear()
    harness.step((first, 1), (second, 10))
    assert ops.counts == [11] * (num_storing - 1) + [2] * (num_layers - num_storing + 1)


def test_a_part_of_a_prompt_ends_with_what_it_stores(tmp_path: Path) -> None:
    ops = CountingOps()
    harness = Harness(make_text_checkpoint(tmp_path, "qwen3"), ops=ops)
    harness.step((harness.begin(make_prompt(1, 40)), 30))
    assert ops.counts == [30]
