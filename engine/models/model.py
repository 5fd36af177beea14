"""The base of all models: a decoder, and an encoder whose outputs replace the embeddings of placeholder tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from glimpse.engine.layers.ops import Ops, TorchOps
from glimpse.engine.model_config import TextConfig
from glimpse.engine.models.decoder import Decoder, text_positions
from glimpse.engine.plan import MediaSpan
from glimpse.engine.tensors.batch import Batch, SequenceLayout
from glimpse.engine.tensors.kv_cache import KVCache


class Model(nn.Module):
    """A model that reads text alone; subclasses add an encoder. Parameters are uninitialized until loaded."""

    renamed_prefixes: ClassVar[Mapping[str, str]] = {}
    """Prefixes of tensor names in transformers 5 → those in published checkpoints."""

    def __init__(self, text: TextConfig) -> None:
        super().__init__()
        self.ops: Ops = TorchOps()
        """Backend of the layers; replaced when a backend repacks the weights."""
        self.decoder_ops: Ops | None = None
        """Replaces `ops` in the decoder if this process holds only a shard of its weights."""
        self.decoder = Decoder(text)

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """As `Decoder.forward`, with the encoder outputs of `encode`."""
        return self.decoder(batch, cache, encoder_outputs, self.decoder_ops or self.ops)

    def encode(self, media: Sequence[tuple[memoryview, tuple[int, int, int]]]) -> list[Tensor]:
        """Returns the encoder output of each medium, [placeholder tokens, hidden_size].

        Args:
            media: content and `grid_thw` of each, as in `glimpse.engine.plan`.

        Raises:
            ValueError: the model has no encoder. The front end refuses media for it.
        """
        if media:
            raise ValueError("the model reads text alone")
        return []

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns the positions of a prompt's tokens: consecutive ones, also for media."""
        return SequenceLayout(prompt_positions=text_positions(0, num_tokens), delta=0, spans=tuple(spans))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from self.decoder.named_weights()

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:  # noqa: ARG002
        """Returns the parts of a checkpoint's tensor that `named_weights` names separately.

        Args:
            name: its checkpoint name.
            tensor: the whole tensor.
            text: sizes of the whole decoder, of which this model may be a shard.
        """
        return ((name, tensor),)
