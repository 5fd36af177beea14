"""The base of all models: a decoder, and an encoder whose outputs replace the embeddings of placeholder tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.gguf.names import BLOCKS
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.core.plan import Encode
from glimpse.engine.core.request import bidirectional_parts
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.low_rank import AdaptedRows
from glimpse.engine.worker.layers.ops import Ops, TorchOps
from glimpse.engine.worker.layers.quantized import named_tensors, prefixed
from glimpse.engine.worker.models.decoder import Decoder, encoded_rows, text_positions
from glimpse.engine.worker.models.decoder_weights import arrange
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.mtp import MultiTokenPredictor
from glimpse.engine.worker.tensors.batch import Batch, SequenceLayout
from glimpse.engine.worker.tensors.kv_cache import KVCache

_STACKS: Mapping[str, Sequence[str]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
"""Parts of the matrices of experts, by what checkpoints call a stack of them."""

RecordedLayer = Callable[[Batch, Tensor], Tensor | None]
"""From a step and what a layer computes on, [tokens, hidden_size], to its output; None if no such step is recorded."""


def with_decoder(prefix: str, renamed: Mapping[str, str]) -> dict[str, str]:
    """Returns renamed prefixes and those of a decoder's tensors in checkpoints without an encoder, as GGUF files have
    them, which get this prefix."""
    names = (f"model.{name}" for name in ("embed_tokens.", "layers.", "norm."))
    return {**renamed, **{name: f"{prefix}{name}" for name in names}}


class Model(nn.Module):
    """A decoder, with an encoder unless the model reads text alone. Parameters are uninitialized until loaded through
    `named_weights`."""

    renamed_prefixes: ClassVar[Mapping[str, str]] = {}
    """Prefixes of tensor names in transformers 5 → those in published checkpoints."""
    decoder_prefix: ClassVar[str] = ""
    """What published checkpoints put before the names of the decoder's tensors."""

    def __init__(
        self, text: TextConfig, encoder: Encoder | None = None, *, token_embedding_size: int | None = None
    ) -> None:
        """`token_embedding_size`: see `ModelConfig`."""
        super().__init__()
        self.ops: Ops = TorchOps()
        """Backend of the layers; replaced when a backend repacks the weights."""
        self.parallel: Callable[[Ops], Ops] | None = None
        """Makes `ops` those of the decoder if this process holds only a shard of its weights."""
        self.adapters = Adapters(0)
        self.decoder = Decoder(text)
        self.mtp = MultiTokenPredictor(text) if text.uses_mtp else None
        self.encoder = encoder
        self.projection = None if token_embedding_size is None else nn.Linear(text.hidden_size, token_embedding_size)

    def quantizable(self, *, with_head: bool = False, with_encoder: bool = False) -> nn.ModuleList:
        """Returns what may be quantized: layers, with what stands before that of multi-token prediction.

        An encoder is only in GGUF files: it runs once per image rather than once per token.
        """
        decoder = self.decoder if with_head else self.decoder.layers
        encoder = self.encoder if with_encoder else None
        return nn.ModuleList([each for each in (decoder, self.mtp, encoder) if each is not None])

    def forward(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """See `Decoder.forward`; `encoder_outputs` are those of `encode`."""
        # Only the first rank knows which rows are sampled, and adapters know their rows in the whole batch.
        narrows = self.parallel is None and not batch.adapters
        return self.decoder(batch, cache, encoder_outputs, self._ops_of(batch), narrows=narrows)

    def hidden_states(self, batch: Batch, cache: KVCache, encoder_outputs: Mapping[bytes, Tensor]) -> Tensor:
        """See `Decoder.hidden_states`."""
        return self.decoder.hidden_states(batch, cache, encoder_outputs, self._ops_of(batch))

    def logits_of_rows(self, hidden: Tensor) -> Tensor:
        """Returns the logits, float32 [rows, vocab_size], of rows of `hidden_states`."""
        return self.decoder.logits(hidden, self._decoder_ops(self.ops))

    def draft_states(
        self,
        batch: Batch,
        following: Tensor,
        hidden: Tensor,
        cache: KVCache,
        encoder_outputs: Mapping[bytes, Tensor],
        recorded: RecordedLayer | None = None,
    ) -> Tensor:
        """Computes the layer of multi-token prediction for a batch's tokens: [tokens, hidden_size].

        Args:
            following: int64 [tokens]: the token after each.
            hidden: [tokens, hidden_size]: states of `hidden_states`, or of this method for the tokens before.
            recorded: computes the layer if it can.
        """
        assert self.mtp is not None
        ops, embedded = self._decoder_ops(self.ops), self.decoder.embed(following)
        first_rows = {0, *accumulate(batch.query_lengths)}
        for rows in batch.media:  # what follows a token is in the row after it, if that is of the same chunk
            is_first = rows.row in first_rows
            encoded = encoded_rows(rows, encoder_outputs)[is_first:, : embedded.shape[1]]
            embedded[rows.row - 1 + is_first : rows.row - 1 + rows.num_tokens] = encoded
        joined = self.mtp.joined(embedded, hidden, self.ops)  # each rank has all of it
        states = None if recorded is None else recorded(batch, joined)
        if states is not None:
            return states
        return self.mtp(joined, ops, self.decoder.full_inputs(batch, cache, ops), cache)

    def draft_logits(self, states: Tensor) -> Tensor:
        """Returns the logits, float32 [rows, vocab_size], of rows of `draft_states`."""
        assert self.mtp is not None
        return self._decoder_ops(self.ops).logits(states, self.mtp.norm, self.decoder.lm_head)

    def embedding_states(self, hidden: Tensor) -> Tensor:
        """Returns what embeddings are pooled of, float32 [rows, size], of rows of `hidden_states`: after the norm, and
        for late interaction projected (transformers, models/colpali)."""
        # The norm of float32 values is float32, whatever the dtype of its weights.
        states = self.decoder.norm(hidden.float()).float()
        if (projection := self.projection) is None:
            return states
        return functional.linear(states, projection.weight.float(), projection.bias.float())

    def _ops_of(self, batch: Batch) -> Ops:
        ops = self.adapters.ops(self.ops, AdaptedRows(batch.adapters)) if batch.adapters else self.ops
        return self._decoder_ops(ops)

    def _decoder_ops(self, local: Ops) -> Ops:
        return local if self.parallel is None else self.parallel(local)

    def encode(self, media: Sequence[Encode]) -> list[Tensor]:
        """Returns the rows of each medium; see `Encoder.encode`.

        Args:
            media: each with `data`.

        Raises:
            ValueError: the model has no encoder. The front end refuses media for it.
        """
        if not media:
            return []
        if self.encoder is None:
            raise ValueError("the model reads text alone")
        outputs: dict[int, Tensor] = {}
        for adapter in {medium.adapter for medium in media}:
            indices = [index for index, medium in enumerate(media) if medium.adapter == adapter]
            rows = self._encode(self.encoder, [media[index] for index in indices], adapter)
            outputs |= zip(indices, rows, strict=True)
        return [outputs[index] for index in range(len(media))]

    def _encode(self, encoder: Encoder, media: Sequence[Encode], adapter: bytes) -> list[Tensor]:
        if not adapter:
            return encoder.encode(media, self.ops)
        with self.adapters.encoder_ops(self.ops, encoder, adapter) as ops:
            return encoder.encode(media, ops)

    def layout(self, num_tokens: int, spans: Sequence[MediaSpan]) -> SequenceLayout:
        """Returns the positions of a prompt's tokens: consecutive ones, also for media."""
        text = self.decoder.config
        return SequenceLayout(
            prompt_positions=text_positions(0, num_tokens),
            delta=0,
            spans=tuple(spans),
            bidirectional=bidirectional_parts(
                num_tokens, spans, runs=text.bidirectional_run > 0, prompt=text.bidirectional_prompt
            ),
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names; see `Decoder.named_weights`."""
        yield from prefixed(self.decoder_prefix, self.decoder.named_weights())
        if self.mtp is not None:
            yield from self.mtp.named_weights()
        if self.encoder is not None:
            yield from self.encoder.named_weights()
        if self.projection is not None:
            yield from named_tensors(self.projection, "embedding_proj_layer")

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        """Returns the parts of a checkpoint's tensor that `named_weights` names separately.

        Here they are the matrices of experts, [experts, inputs, outputs] in Qwen3-VL's checkpoints and [experts,
        outputs, inputs] in transformers 5 and in GGUF files, which may have blocks in place of inputs.

        Args:
            tensor: the whole tensor.
            text: sizes of the whole decoder, of which this model may be a shard.
        """
        layer, _, stack = name.rpartition(".mlp.experts.")
        if layer and stack.endswith(f".{BLOCKS}") and tensor.dim() == 3:
            return ((f"{layer}.mlp.experts.{index}.{stack}", blocks) for index, blocks in enumerate(tensor))
        if text.experts is None or stack not in _STACKS or tensor.dim() != 3:
            return ((name, tensor),)
        parts = _STACKS[stack]
        num_inputs = text.experts.intermediate_size if stack == "down_proj" else text.hidden_size
        stacks = (tensor.mT if tensor.shape[1] == num_inputs else tensor).chunk(len(parts), dim=1)
        return (
            (f"{layer}.mlp.experts.{index}.{part}.weight", matrix)
            for part, matrices in zip(parts, stacks, strict=True)
            for index, matrix in enumerate(matrices)
        )

    def arrange(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        """Returns the parts of a tensor that linears and norms store, in their order; see `arrange`.

        Args:
            tensor: the part, converted to what a quantized linear stores: output features first.
            text: sizes of the whole decoder, of which this model may be a shard.
        """
        is_of_decoder = name.startswith((f"{self.decoder_prefix}model.", "mtp."))
        return arrange(name, tensor, text) if is_of_decoder else ((name, tensor),)

    def is_unused(self, name: str) -> bool:
        """Whether a checkpoint may have a tensor of this checkpoint name that the model does not compute with."""
        is_repeated = name.endswith(("lm_head.weight", "rotary_emb.inv_freq"))
        is_of_drafts = self.mtp is None and name.startswith("mtp.")
        return is_repeated or is_of_drafts or (self.encoder is not None and self.encoder.is_unused(name))
