"""Models that read text alone: Qwen2, Qwen3, Llama, Mistral and Phi-3."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from glimpse.engine.checkpoint.gguf.names import BLOCKS
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.models.model import Model


class TextModel(Model):
    """A decoder. Phi-3's checkpoints stack the weights of projections with the same input.

    Checkpoints of embedding models, such as Qwen3-Embedding, are saved without the output head around the decoder, so
    that their names have no prefix.
    """

    renamed_prefixes: ClassVar = {name: f"model.{name}" for name in ("embed_tokens.", "layers.", "norm.")}

    def split_weight(self, name: str, tensor: Tensor, text: TextConfig) -> Iterable[tuple[str, Tensor]]:
        kind = name.rpartition(".")[2]
        heads = [text.num_heads, text.num_kv_heads, text.num_kv_heads]
        for stack, parts, sizes in (
            ("qkv_proj", ("q_proj", "k_proj", "v_proj"), [count * text.head_dim for count in heads]),
            ("gate_up_proj", ("gate_proj", "up_proj"), [text.intermediate_size] * 2),
        ):
            rows = sum(sizes) // len(tensor) if kind == "weight_zero_point" else 1  # in a word
            if f".{stack}." in name and kind in _BY_OUTPUTS and rows * len(tensor) == sum(sizes):
                names = (name.replace(stack, part) for part in parts)
                return zip(names, tensor.split([size // rows for size in sizes]), strict=True)
        if ".qkv_proj." in name and kind != "weight_shape" and text.rotary_dim != text.head_dim:
            raise CheckpointError(f"tensor {name!r}: expected an unquantized weight, as heads rotate only in part")
        return super().split_weight(name, tensor, text)


_BY_OUTPUTS = ("weight", "weight_packed", "weight_scale", "weight_zero_point", BLOCKS)
"""Tensors of a matrix, also in compressed-tensors and in GGUF files, that have its output features first."""


def make_model(_path: Path, config: ModelConfig) -> TextModel:
    """Returns the checkpoint's model without its weights."""
    return TextModel(config.text)
