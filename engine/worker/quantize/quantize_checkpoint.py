"""Quantizes a checkpoint: which can be, with which text, and what is told of it."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.weight_files import is_gguf, read_headers, weight_files
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.quantize.decoder import Loss, StoredTensors, Texts, quantize_decoder
from glimpse.engine.worker.quantize.folder import WeightWriter, copy_files, new_folder, quantization_config
from glimpse.engine.worker.quantize.layers import linears
from glimpse.engine.worker.quantize.rounding import Method, round_matrix

GROUP_SIZES = (32, 64, 128)
_NUM_SEEN, _NUM_HELD_OUT, _TEXT_TOKENS = 8, 4, 512
"""Texts that are seen and held out, and tokens of each."""
_WORD_BITS = 32
_GROUP_BYTES = 5
"""A scale and a zero point, at most."""
_SPARE_BYTES = 64 << 20
"""Room for the files that are not weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How matrices are rounded."""

    to: Literal["int4", "int8"]
    group_size: int
    """Inputs that share a scale and a zero point."""
    method: Method = "compensated"

    @property
    def bits(self) -> int:
        return int(self.to.removeprefix("int"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """What was made."""

    loss: Loss
    num_bytes: int
    """Size of the new weights."""


def quantize_checkpoint(
    path: Path, out: Path, recipe: Recipe, text: str, *, on_progress: Callable[[float], None] = lambda _fraction: None
) -> Quantized:
    """Writes a checkpoint in which the decoder's matrices are quantized and all else is kept.

    The format is AWQ's, or with 8 bits GPTQ's.

    Args:
        path: folder of a checkpoint that is not quantized.
        out: the new folder.
        text: decides how matrices are rounded; a part of it is held out and measures the loss.
        on_progress: called with the fraction of layers that is done.

    Raises:
        CheckpointError: the checkpoint, the recipe or the text does not allow it, or `out` cannot be written.
    """
    config = load_model_config(path)
    if (why_not := _why_not(path, config)) is not None:
        raise CheckpointError(f"'MODEL': {why_not}")
    model = empty_model(path, config, torch.float32, None, scale_dtype=torch.float32, num_ranks=1)
    _check_sizes(model, recipe)
    texts = divide(load_tokenizer(path).encode(text))
    rounds = partial(
        round_matrix,
        bits=recipe.bits,
        group_size=recipe.group_size,
        scale_dtype=getattr(torch, config.dtype),
        method=recipe.method,
    )
    with new_folder(out) as folder, torch.inference_mode():
        stored = StoredTensors(path, model, config.text)
        _check_space(folder, path, stored, recipe)
        quantization = quantization_config(bits=recipe.bits, group_size=recipe.group_size, kept=stored.kept_modules)
        copy_files(path, folder, quantization)
        writer = WeightWriter(folder=folder, bits=recipe.bits)
        loss = quantize_decoder(model, stored, texts, round_matrix=rounds, write=writer.write, on_progress=on_progress)
        return Quantized(loss=loss, num_bytes=writer.finish())


def divide(token_ids: Sequence[int]) -> Texts:
    """Returns texts from all parts of a long one; each third is held out.

    Raises:
        CheckpointError: the text is too short.
    """
    num_texts = min(_NUM_SEEN + _NUM_HELD_OUT, len(token_ids) // _TEXT_TOKENS)
    if num_texts < 3:
        raise CheckpointError(f"'--text': expected at least {3 * _TEXT_TOKENS} tokens, got {len(token_ids)}")
    step = len(token_ids) // num_texts
    texts = [token_ids[index * step : index * step + _TEXT_TOKENS] for index in range(num_texts)]
    held_out = texts[2::3]
    return Texts(seen=[text for index, text in enumerate(texts) if index % 3 != 2], held_out=held_out)


def _why_not(path: Path, config: ModelConfig) -> str | None:
    """Returns why a checkpoint cannot be quantized; None if it can."""
    if any(map(is_gguf, weight_files(path))):
        return "expected a checkpoint in safetensors, got a GGUF file"
    if config.quantization is not None or config.fp8_blocks is not None:
        return f"expected weights in float, got a checkpoint that is quantized as {config.quantization or 'fp8'}"
    if config.text.experts is not None:
        return "expected a model without experts, whose weights a short text does not reach"
    if config.companions or config.is_embedding_model:
        return "expected a model that generates text, in one checkpoint"
    if read_headers(path) is None:
        return "expected all files of the weights, which are not there; `glimpse pull` downloads them"
    return None


def _check_sizes(model: Model, recipe: Recipe) -> None:
    fields = _WORD_BITS // recipe.bits
    for linear in linears(model.decoder.layers):
        if linear.in_features % recipe.group_size:
            raise CheckpointError(
                f"'--group-size': expected a divisor of {linear.in_features}, the inputs of a matrix, got"
                f" {recipe.group_size}"
            )
        for size in linear.sizes:
            if size % fields:
                raise CheckpointError(f"'--to': expected multiples of {fields} outputs for {recipe.to}, got {size}")


def _check_space(folder: Path, path: Path, stored: StoredTensors, recipe: Recipe) -> None:
    in_layers = {name for names in stored.layers for name in names}
    needed = _SPARE_BYTES
    for name, tensor in (read_headers(path) or {}).items():
        size = math.prod(tensor.shape)
        if name in in_layers and len(tensor.shape) == 2:
            needed += size * recipe.bits // 8 + size // recipe.group_size * _GROUP_BYTES
        else:
            needed += size * (4 if tensor.dtype == "F32" else 2)
    if needed > (free := shutil.disk_usage(folder).free):
        raise CheckpointError(f"'OUT': expected {needed / 2**30:.1f} GiB of free space, got {free / 2**30:.1f} GiB")
