"""Native gated delta nets, compared with the reference implementation at every level of this machine."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes
from glimpse.engine.worker.layers.delta_net import DeltaNet, delta_net, plan_states
from glimpse.engine.worker.native.library import Level, load_library
from glimpse.engine.worker.native.native_ops import NativeOps, plan_parts
from glimpse.engine.worker.tensors.batch import StateRows
from glimpse.engine.worker.tensors.kv_cache import LayerStates
from tests.engine.levels import at_each_level, needs_kernels

pytestmark = needs_kernels

SIZES = [
    DeltaNetSizes(num_key_heads=2, num_value_heads=6, key_head_dim=6, value_head_dim=10, conv_size=4),
    DeltaNetSizes(num_key_heads=1, num_value_heads=2, key_head_dim=128, value_head_dim=128, conv_size=4),
    DeltaNetSizes(num_key_heads=3, num_value_heads=3, key_head_dim=40, value_head_dim=72, conv_size=2),
]
ZEROS, OF_OTHERS, OWN = -1, 0, 1
"""What a sequence begins with; its own state is overwritten."""

lengths = st.just(1) | st.builds(lambda chunks, more: 64 * chunks + more, st.integers(1, 2), st.integers(-62, 2))
sequences = st.lists(
    st.tuples(st.sampled_from([ZEROS, OF_OTHERS, OWN]), st.lists(lengths, min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def parts_of(drawn: Sequence[tuple[int, Sequence[int]]]) -> list[StateRows]:
    """Returns the parts of sequences, of which each writes states of its own."""
    parts = list[StateRows]()
    row = 0
    for begins, own_lengths in drawn:
        reads = len(parts) + 1 if begins == OWN else begins
        for index, num_rows in enumerate(own_lengths):
            parts.append(StateRows(row, num_rows, reads, len(parts) + 1, index > 0))
            row, reads = row + num_rows, len(parts)
    return parts


def random_net(sizes: DeltaNetSizes, random: torch.Generator) -> DeltaNet:
    net = DeltaNet(sizes, 64, eps=1e-6)
    for parameter in net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=random))
    return net


@at_each_level
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@settings(max_examples=10)
@example(drawn=[(ZEROS, [1]), (ZEROS, [1, 101, 97]), (ZEROS, [1, 64, 2])], sizes=SIZES[0], seed=69)
@given(drawn=sequences, sizes=st.sampled_from(SIZES), seed=st.integers(0, 99))
def test_states_and_outputs_match(
    level: Level, dtype: torch.dtype, drawn: list[tuple[int, list[int]]], sizes: DeltaNetSizes, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    parts, net = parts_of(drawn), random_net(sizes, random).to(dtype)
    num_rows, num_states = sum(part.num_rows for part in parts), len(parts) + 1

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    projected = draw(num_rows, sizes.conv_width + sizes.value_width).to(dtype)
    rates = draw(num_rows, 2 * sizes.num_value_heads).to(dtype)
    states = LayerStates(
        draw(num_states, sizes.conv_size - 1, sizes.conv_width).to(dtype),
        draw(num_states, sizes.num_value_heads, sizes.key_head_dim, sizes.value_head_dim),
    )
    expected_states = LayerStates(states.conv.clone(), states.recurrent.double())
    with pytest.MonkeyPatch.context() as patch:
        # In float64, since float32 rounds the reference, too, by nearly as much as is allowed.
        patch.setattr(Tensor, "float", Tensor.double)
        expected = delta_net(projected, rates, net, expected_states, plan_states(parts, torch.device("cpu")))
    found = NativeOps(load_library(), level).delta_net(projected, rates, net, states, plan_parts(parts))
    assert torch.equal(states.conv, expected_states.conv)
    torch.testing.assert_close(states.recurrent.double(), expected_states.recurrent, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-4 if dtype is torch.float32 else 2**-7, atol=1e-4)
