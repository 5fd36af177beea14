"""Losses and gradients of one worker's batches."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.training.batching.packing import NOTHING, Batch, Runs
from models.training.learning.blocks import Compute, Layout
from models.training.learning.network import Network, PackedMedia, PackedText, Sizes
from models.training.learning.vision_pretraining import WIDTHS, Heads, dense_loss

DENSE_FIGURES = tuple(f"vision.{name}" for name in (*WIDTHS, "offset"))
DENSE_WEIGHT = 0.15
"""Losses of the vision encoder's own labels."""

Figures = dict[str, tuple[float, float]]
"""Figures: name → (sum, count)."""


class Learner(nn.Module):
    """The network and the heads that train its vision encoder directly."""

    def __init__(self, sizes: Sizes, compute: Compute, *, learns_to_see: bool = True) -> None:
        super().__init__()
        self.learns_to_see = learns_to_see
        self.network = Network(sizes, compute)
        self.heads = Heads(sizes.hidden_size)

    def learn(self, batch: Batch, device: torch.device) -> Figures:
        """Accumulates the gradients of a batch; returns its losses."""
        with torch.set_grad_enabled(self.learns_to_see):
            rows, losses = self._see(batch, device)
        figures: Figures = {f"vision.{name}": (loss.item(), 1) for name, loss in losses.items()}
        figures["samples"] = len(batch.tasks) or batch.num_media, 1
        total = dense_loss(losses) if losses else torch.zeros((), device=device)
        if batch.tasks:
            each = self._answer(batch, rows, device)
            figures |= _by_task(each, batch)
            total = each.sum() / (batch.targets != NOTHING).sum() + DENSE_WEIGHT * total
        total.backward()
        return figures

    def _see(self, batch: Batch, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the encoder's rows of all media, and their losses."""
        hidden_size = self.network.sizes.hidden_size
        if not batch.num_media_rows:
            return torch.zeros(0, hidden_size, device=device), {}
        media = PackedMedia(
            patches=torch.from_numpy(batch.patches).to(device),
            positions=torch.from_numpy(batch.patch_positions).to(device),
            layout=to_layout(batch.patch_runs, device),
        )
        rows = self.network.visual(media)
        classes = torch.from_numpy(batch.classes).to(device).long()
        return rows, self.heads(rows, classes, torch.from_numpy(batch.offsets).to(device))

    def _answer(self, batch: Batch, rows: Tensor, device: torch.device) -> Tensor:
        """Returns float32 [answers]: the loss of each target token."""
        text = PackedText(
            token_ids=torch.from_numpy(batch.token_ids).to(device),
            positions=torch.from_numpy(batch.positions).to(device),
            layout=to_layout(batch.token_runs, device),
            media_tokens=torch.from_numpy(batch.media_tokens).to(device),
            media_rows=torch.from_numpy(batch.media_rows).to(device),
        )
        scores = self.network(text, rows, torch.from_numpy(batch.predicted).to(device))
        targets = torch.from_numpy(batch.targets).to(device)
        if batch.choices:
            scores = _among_choices(scores, batch)
        return functional.cross_entropy(scores, targets, ignore_index=NOTHING, reduction="none")


def _among_choices(scores: Tensor, batch: Batch) -> Tensor:
    """Returns the scores, closed to all tokens that a constraint forbids."""
    rows = torch.tensor([row for row, _ in batch.choices], device=scores.device)
    closed = torch.ones(len(rows), scores.shape[1], dtype=torch.bool)
    for index, (_, ids) in enumerate(batch.choices):
        closed[index, torch.from_numpy(ids)] = False
    return scores.index_copy(0, rows, scores[rows].masked_fill(closed.to(scores.device), -1e9))


def to_layout(runs: Runs, device: torch.device) -> Layout:
    """Moves the arrays to a device."""
    rows, places = torch.from_numpy(runs.rows).to(device), torch.from_numpy(runs.places).to(device)
    return Layout(groups=runs.groups, rows=rows, places=places)


def figure_names(tasks: Sequence[str]) -> list[str]:
    """Returns the names of the figures of `Learner.learn`, in order."""
    return [*DENSE_FIGURES, *tasks, "samples"]


def _by_task(each: Tensor, batch: Batch) -> Figures:
    losses = each.detach().cpu()
    owners = torch.from_numpy(batch.owners)
    names = sorted(set(batch.tasks))
    of_sample = torch.tensor([names.index(task) for task in batch.tasks])
    # A sample's loss is the sum over its tokens: -log of the probability of the whole answer.
    sums = torch.zeros(len(batch.tasks)).index_add_(0, owners, losses)
    return {
        name: (sums[of_sample == index].sum().item(), int((of_sample == index).sum()))
        for index, name in enumerate(names)
    }
