"""The minimum cost of a step: bytes to read and matrix products to compute.

Norms, rotary embedding and activations are negligible and not counted, nor are the products of gated delta nets with
their states. A multiply-add is two operations. Causal attention computes half of all pairs.
"""

import math
from collections.abc import Mapping

from glimpse.engine.checkpoint.model_config.decoder import DeltaNetSizes, TextConfig
from glimpse.engine.checkpoint.model_config.encoders import VisionConfig

_BFLOAT16_BYTES = 2
_VALUE_BYTES: Mapping[str, float] = {"int8": 1.0, "w8a8": 1.0, "int4": 0.5, "fp8": 1.0}
_GROUP_SIZE = 128
"""Weights of a group, in what is quantized at load time and in most checkpoints."""


def linear_values(text: TextConfig) -> float:
    """Returns the weights of all layers' linears that compute a token: the projections of attention and of gated delta
    nets, gate, up and down, the last three of each of its experts."""
    return read_values(text, 1)


def read_values(text: TextConfig, num_tokens: int) -> float:
    """Returns the weights of all layers' linears that a step of so many tokens reads. Experts are chosen at random."""
    return sum(_layer_values(text, index, num_tokens) for index in range(text.num_layers))


def _layer_values(text: TextConfig, index: int, num_tokens: int = 1) -> float:
    experts, features = text.experts, float(text.intermediate_size)
    if experts is not None and index in experts.layers:
        chosen = 1 - (1 - experts.num_chosen / experts.num_experts) ** num_tokens
        read = chosen * experts.num_experts if num_tokens > 1 else experts.num_chosen
        features = read * experts.intermediate_size + experts.shared_size
    mixing = _attention_values(text) if _attends(text, index) else _state_layer_values(text)
    return mixing + 3 * text.hidden_size * features


def _stored_values(text: TextConfig, index: int) -> float:
    """Returns the weights of a layer's linears that compute what it stores of a token."""
    keys_and_values = 2 * text.hidden_size * text.num_kv_heads * text.head_dim
    return keys_and_values if _attends(text, index) else _state_layer_values(text)


def _attention_values(text: TextConfig) -> int:
    queries, keys = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
    return text.hidden_size * ((2 + text.output_gate) * queries + 2 * keys)


def _state_layer_values(text: TextConfig) -> int:
    if (sizes := text.states) is None:
        return 0
    if not isinstance(sizes, DeltaNetSizes):
        return 4 * text.hidden_size * sizes.conv_width
    return text.hidden_size * (sizes.conv_width + 2 * sizes.value_width + 2 * sizes.num_value_heads)


def _attends(text: TextConfig, index: int) -> bool:
    return text.layer_kinds[index] in ("full", "sliding")


def _num_attending(text: TextConfig, num_layers: int | None = None) -> int:
    """Returns how many of the first `num_layers` attend to tokens. Default: of all."""
    return sum(_attends(text, index) for index in range(text.num_layers if num_layers is None else num_layers))


def head_values(text: TextConfig) -> int:
    """Returns the weights of the output head."""
    return text.vocab_size * text.hidden_size


def stored_bytes(
    text: TextConfig,
    *,
    quantization: str,
    value_bytes: int = _BFLOAT16_BYTES,
    scale_bytes: int = _BFLOAT16_BYTES,
    int8_head: bool = False,
    num_tokens: int = 1,
) -> float:
    """Returns the bytes of weights that a step reads.

    Scales of output features are negligible and not counted.

    Args:
        text: configuration of the decoder.
        quantization: what an engine reports: "none", "int8", or a checkpoint's, such as "gptq int8".
        value_bytes: of a weight that is not quantized.
        scale_bytes: of a group's scale: 4 in the native kernels' layout, else those of the dtype.
        int8_head: whether the output head is quantized to int8.
        num_tokens: of the step.
    """
    *method, kind = quantization.split()
    weight_bytes = _VALUE_BYTES.get(kind, value_bytes)
    if method or kind in ("int4", "w8a8"):
        weight_bytes += (scale_bytes + 1) / _GROUP_SIZE  # with a zero point
    return read_values(text, num_tokens) * weight_bytes + head_values(text) * (1 if int8_head else value_bytes)


def decode_bytes(
    text: TextConfig, weight_bytes: float, *, batch: int, context: int, value_bytes: int = _BFLOAT16_BYTES
) -> float:
    """Returns the bytes read by a decode step of `batch` sequences of `context` tokens.

    The states of gated delta nets, of float32, are read and written. `value_bytes`: of a number in the KV cache.
    """
    attending, sizes = _num_attending(text), text.states
    token_bytes = 2 * attending * text.num_kv_heads * text.head_dim * value_bytes
    state_bytes = 0 if sizes is None else 4 * math.prod(sizes.matrices)
    return weight_bytes + batch * (context * token_bytes + 2 * (text.num_layers - attending) * state_bytes)


def decode_flops(text: TextConfig, *, batch: int, context: int) -> float:
    """Returns the operations of a decode step of `batch` sequences of `context` tokens."""
    attention = _num_attending(text) * text.num_heads * text.head_dim * 4 * context
    return batch * (2 * linear_values(text) + 2 * head_values(text) + attention)


def prefill_flops(text: TextConfig, num_tokens: int) -> float:
    """Returns the operations of an uncached prompt with one sampled token.

    Of other tokens, the last layer that stores something computes this alone, and the layers after it nothing.
    """
    last = text.num_storing_layers - 1
    every = sum(_layer_values(text, index) for index in range(last)) + _stored_values(text, last)
    attention = _num_attending(text, last) * text.num_heads * text.head_dim * 2 * num_tokens * num_tokens
    return 2 * num_tokens * every + 2 * (linear_values(text) - every) + 2 * head_values(text) + attention


def vision_flops(vision: VisionConfig, num_patches: int) -> float:
    """Returns the operations of encoding an image of `num_patches` patches."""
    width, merged = vision.embed_dim, vision.embed_dim * vision.spatial_merge_size**2
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    block = 4 * width * width + (3 if vision.gated else 2) * vision.intermediate_size * width
    windows = vision.windows
    bounded = 0 if windows is None else vision.depth - len(windows.full_attention_blocks)
    reach = num_patches if windows is None else (windows.side * vision.spatial_merge_size) ** 2
    pairs = num_patches * ((vision.depth - bounded) * num_patches + bounded * min(reach, num_patches))
    merger = (num_patches // vision.spatial_merge_size**2) * merged * (merged + vision.hidden_size)
    return 2 * num_patches * (patch * width + vision.depth * block) + 4 * width * pairs + 2 * merger
