"""The base of all encoders."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.tensors.transfer import upload_bytes


class Encoder(nn.Module, ABC):
    """From the media of a step to the rows that replace the embeddings of placeholder tokens."""

    @abstractmethod
    def encode(self, media: Sequence[Encode], ops: Ops) -> list[Tensor]:
        """Returns the rows of each medium, [placeholder tokens, encoder_row_width of `TextConfig`].

        Args:
            media: at least one, each with `data`.
        """

    @abstractmethod
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; matrices of fused linears are views."""

    def is_unused(self, name: str) -> bool:  # noqa: ARG002
        """Whether a checkpoint may have a tensor of this checkpoint name that the encoder does not compute with."""
        return False


def upload_features(medium: Encode, like: Tensor) -> Tensor:
    """Returns the features of an audio input, [mel bins, frames], on the device and in the type of a weight."""
    features = upload_bytes(medium.data, like.device).view(torch.float32)
    return features.view(medium.grid[1:]).to(like.dtype)
