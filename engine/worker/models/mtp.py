"""Multi-token prediction (arXiv 2412.19437, section 2.2): a layer that predicts the token after the next one.

It computes on a token's hidden state and the embedding of the token that follows. Its own output takes the place of the
hidden state for the token after that. Numerics follow vLLM's model_executor/models/qwen3_5_mtp.py and glm_ocr_mtp.py,
which leaves out the embedding behind a sequence's first token.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.mixers import LayerInputs
from glimpse.engine.worker.layers.norm import RMSNorm
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import prefixed
from glimpse.engine.worker.models.decoder import DecoderLayer
from glimpse.engine.worker.tensors.kv_cache import KVCache


class MultiTokenPredictor(nn.Module):
    """The layer, and the norms around it. Embeddings and output head are the decoder's."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        experts = None if config.experts is None else replace(config.experts, layers=frozenset([0]))
        self.embedding_norm, self.hidden_norm, self.norm = (RMSNorm(width, eps=eps) for _ in range(3))
        self.fc = Linear(2 * width, width, bias=False)
        self.layer = DecoderLayer(replace(config, layer_kinds=("full",), states=None, experts=experts), 0)
        self.cache_index = config.num_layers
        self.repeats_normed = config.mtp_repeats_normed

    def joined(self, embedded: Tensor, hidden: Tensor, ops: Ops) -> Tensor:
        """Returns what the layer computes on, [tokens, hidden_size].

        Args:
            embedded: [tokens, hidden_size]: embeddings of the tokens that follow.
            hidden: [tokens, hidden_size]: normalized hidden states.
        """
        return ops.linear_add(
            torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], dim=1), self.fc, None
        )

    def forward(self, joined: Tensor, ops: Ops, inputs: LayerInputs, cache: KVCache) -> Tensor:
        """Computes the layer: [tokens, hidden_size], before `norm`."""
        return self.layer(joined, ops, inputs, cache, self.cache_index)

    def repeated(self, states: Tensor) -> Tensor:
        """Returns what takes the place of `hidden` for the tokens after those of these outputs."""
        return self.norm(states) if self.repeats_normed else states

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields all weights with their checkpoint names."""
        yield from self.fc.named_weights("mtp.fc")
        yield "mtp.pre_fc_norm_embedding.weight", self.embedding_norm.weight.data
        yield "mtp.pre_fc_norm_hidden.weight", self.hidden_norm.weight.data
        yield "mtp.norm.weight", self.norm.weight.data
        yield from prefixed("mtp.layers.0.", self.layer.named_weights())
