"""Training checkpoints, written atomically."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.training.learning.network import Sizes
from models.training.learning.plan import Plan
from models.training.learning.shared import Memory

FILE = "training.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything needed to resume training."""

    step: int
    """The next step."""
    begun: int = 0
    """The step at which the optimizer started."""
    sizes: Sizes
    plan: Plan
    weights: Tensor
    first: Tensor
    second: Tensor

    @staticmethod
    def of(memory: Memory, *, step: int, begun: int, sizes: Sizes, plan: Plan) -> "State":
        """Captures the state from memory."""
        return State(
            step=step,
            begun=begun,
            sizes=sizes,
            plan=plan,
            weights=memory.weights,
            first=memory.first,
            second=memory.second,
        )

    def restore(self, memory: Memory) -> None:
        """Restores the state to memory."""
        memory.weights.copy_(self.weights)
        memory.first.copy_(self.first)
        memory.second.copy_(self.second)


def save_state(folder: Path, state: State) -> None:
    """Replaces the folder's checkpoint atomically."""
    document: dict[str, Any] = {name: getattr(state, name).cpu() for name in ("weights", "first", "second")}
    document |= {"step": state.step, "begun": state.begun}
    document |= {"sizes": asdict(state.sizes), "plan": asdict(state.plan)}
    torch.save(document, folder / f"{FILE}.part")
    (folder / f"{FILE}.part").rename(folder / FILE)


def load_state(folder: Path) -> State:
    """Loads the folder's checkpoint."""
    document = torch.load(folder / FILE, weights_only=True)
    sizes, plan = Sizes(**document.pop("sizes")), Plan(**document.pop("plan"))
    return State(sizes=sizes, plan=plan, **document)
