"""Linears of a model are replaced one at a time, in no more memory than the model and one of them."""

from weakref import ref

from torch import nn

from glimpse.engine.worker.layers.linear import Linear, replace_linears


def test_frees_each_linear_before_the_next_is_replaced():
    root = nn.Sequential(*(nn.Sequential(Linear(4, 4, bias=False), Linear(4, 4, bias=False)) for _ in range(2)))
    linears = [ref(module) for module in root.modules() if isinstance(module, Linear)]
    num_alive: list[int] = []

    def replace(_linear: Linear, _parent: nn.Module) -> nn.Module:
        num_alive.append(sum(linear() is not None for linear in linears))
        return nn.Identity()

    replace_linears(root, (Linear,), replace)
    assert num_alive == [4, 3, 2, 1]
    assert not any(linear() for linear in linears)
