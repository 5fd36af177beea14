"""Quantizes a checkpoint: which can be, with which text, and what is told of it."""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.mixture import FILE_TYPE, q4_k_m_types
from glimpse.engine.checkpoint.gguf.writer import GgufWriter
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.linear import stacked
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_files import is_gguf, read_headers, weight_files
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.quantize.decoder import Loss, SafetensorsTensors, StoredTensors, Texts, quantize_decoder
from glimpse.engine.worker.quantize.folder import WeightWriter, copy_files, new_folder, quantization_config
from glimpse.engine.worker.quantize.gguf_file import SOURCE_TYPES, BlockRounding, BlockWriter, GgufTensors, new_name
from glimpse.engine.worker.quantize.layers import Round, StoredPart, linears
from glimpse.engine.worker.quantize.rounding import Method, Rounded, round_matrix
from glimpse.native.memory import gib

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

    to: Literal["int4", "int8", "q4_k_m"]
    group_size: int = GROUP_SIZES[0]
    """Inputs that share a scale and a zero point. Types of GGUF files have their own."""
    method: Method = "compensated"

    @property
    def is_gguf(self) -> bool:
        return self.to == "q4_k_m"

    @property
    def bits(self) -> int:
        return int(self.to.removeprefix("int"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """What was made."""

    loss: Loss
    num_bytes: int
    """Size of the new weights."""
    path: Path
    """What to load: a folder or a GGUF file."""
    format: str
    """What the matrices are, in words."""


def quantize_checkpoint(
    path: Path, out: Path, recipe: Recipe, text: str, *, on_progress: Callable[[float], None] = lambda _fraction: None
) -> Quantized:
    """Writes a checkpoint in which the decoder's matrices are quantized and all else is kept.

    The format is AWQ's, or with 8 bits GPTQ's; or a GGUF file in Q4_K_M, in which embeddings and output head are
    quantized too, with a copy of its mmproj.

    Args:
        path: folder of a checkpoint that is not quantized, or the one that stands for a GGUF file.
        out: the new folder.
        text: decides how matrices are rounded; a part of it is held out and measures the loss.
        on_progress: called with the fraction of layers that is done.

    Raises:
        CheckpointError: the checkpoint, the recipe or the text does not allow it, or `out` cannot be written.
    """
    config = load_model_config(path)
    _check(path, config, recipe)
    model = empty_model(path, config, torch.float32, None, scale_dtype=torch.float32, num_ranks=1)
    _check_sizes(model, recipe)
    texts = divide(load_tokenizer(path).encode(text))
    quantize = partial(quantize_decoder, model, texts=texts, on_progress=on_progress)
    with new_folder(out) as folder, torch.inference_mode():
        made = (_write_gguf if recipe.is_gguf else _write_folder)(path, folder, config, model, recipe, quantize)
        return replace(made, path=out / made.path.relative_to(folder))


def _write_folder(
    path: Path, folder: Path, config: ModelConfig, model: Model, recipe: Recipe, quantize: Callable[..., Loss]
) -> Quantized:
    stored, round_parts = rounding(path, config, model, recipe)
    assert isinstance(stored, SafetensorsTensors)
    _check_space(folder, _bytes_of_folder(path, stored, recipe))
    quantization = quantization_config(bits=recipe.bits, group_size=recipe.group_size, kept=stored.kept_modules)
    copy_files(path, folder, quantization)
    writer = WeightWriter(folder=folder, bits=recipe.bits)
    loss = quantize(stored, round_parts=round_parts, write=writer.write)
    in_words = f"{recipe.to} in groups of {recipe.group_size}"
    return Quantized(loss=loss, num_bytes=writer.finish(), path=folder, format=in_words)


def _write_gguf(
    path: Path, folder: Path, config: ModelConfig, model: Model, recipe: Recipe, quantize: Callable[..., Loss]
) -> Quantized:
    source, *encoders = (file.parent / file.readlink() for file in weight_files(path))
    file, gguf = folder / new_name(source), Gguf(source)
    stored, round_parts = rounding(path, config, model, recipe)
    with GgufWriter(file, gguf, q4_k_m_types(gguf), FILE_TYPE) as new_file:
        _check_space(folder, new_file.file_bytes + sum(each.stat().st_size for each in encoders))
        for each in encoders:
            shutil.copyfile(each, folder / each.name)
        writer = BlockWriter(writer=new_file)
        loss = quantize(stored, round_parts=round_parts, write=writer.write)
    counts = ", ".join(f"{count} in {kind}" for kind, count in writer.counts.most_common())
    return Quantized(loss=loss, num_bytes=new_file.num_bytes, path=file, format=f"{recipe.to}; matrices: {counts}")


def rounding(path: Path, config: ModelConfig, model: Model, recipe: Recipe) -> tuple[StoredTensors, Round]:
    """Returns a checkpoint's tensors, and what rounds them."""
    if recipe.is_gguf:
        gguf = Gguf(weight_files(path)[0])
        blocks = BlockRounding(gguf=gguf, types=q4_k_m_types(gguf), method=recipe.method)
        return GgufTensors(gguf, model, config.text), blocks.round_parts
    round_whole = partial(
        round_matrix,
        bits=recipe.bits,
        group_size=recipe.group_size,
        scale_dtype=getattr(torch, config.dtype),
        method=recipe.method,
    )
    return SafetensorsTensors(path, model, config.text), partial(_round_stacked, round_whole=round_whole)


def _round_stacked(
    parts: Sequence[StoredPart], moments: Tensor | None, *, round_whole: Callable[[Tensor, Tensor], Rounded]
) -> Iterator[Rounded | None]:
    """Rounds the parts of a linear together, with one factorization of the moments."""
    if moments is None:
        yield from (None for _ in parts)
        return
    rounded = round_whole(torch.cat([each.tensor.float() for each in parts]), moments)
    yield from (rounded.rows(rows) for _, rows in stacked([""] * len(parts), [len(each.tensor) for each in parts]))


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


def _check(path: Path, config: ModelConfig, recipe: Recipe) -> None:
    if (why_not := _why_not(path, config, recipe)) is not None:
        raise CheckpointError(f"'MODEL': {why_not}")
    tensors = check_tensors(read_headers(path) or {}, path, config)
    wrong = {"are missing": tensors.missing, "are unexpected": tensors.unexpected}
    problems = [f"{', '.join(names[:3])} {what}" for what, names in wrong.items() if names] + tensors.unfit[:3]
    if problems:
        raise CheckpointError(f"'MODEL': expected the tensors of {config.architecture}: {'; '.join(problems)}")


def _why_not(path: Path, config: ModelConfig, recipe: Recipe) -> str | None:
    """Returns why a checkpoint cannot be quantized; None if it can."""
    is_file = is_gguf(weight_files(path)[0])
    if recipe.is_gguf and not is_file:
        return "expected a GGUF file for '--to q4_k_m', got a folder; write --to int4, or name the model's file in F16"
    if is_file and not recipe.is_gguf:
        return f"expected a checkpoint in safetensors for '--to {recipe.to}', got a GGUF file; write --to q4_k_m"
    if not is_file and (config.quantization is not None or config.fp8_blocks is not None):
        return f"expected weights in float, got a checkpoint that is quantized as {config.quantization or 'fp8'}"
    if config.text.experts is not None:
        return "expected a model without experts, whose weights a short text does not reach"
    if config.companions or config.is_embedding_model:
        return "expected a model that generates text, in one checkpoint"
    if read_headers(path) is None:
        return "expected all files of the weights, which are not there; `glimpse pull` downloads them"
    tensors = Gguf(weight_files(path)[0]).tensors if is_file else {}
    rounded = next((name for name, each in tensors.items() if each.type.name not in SOURCE_TYPES), None)
    if rounded is not None:
        kinds = ", ".join(SOURCE_TYPES)
        return f"expected types of {kinds}, got {rounded!r} in {tensors[rounded].type.name}: it is quantized already"
    return None


def _check_sizes(model: Model, recipe: Recipe) -> None:
    if recipe.is_gguf:
        if recipe.group_size != GROUP_SIZES[0]:
            raise CheckpointError(
                f"'--group-size': expected none with '--to q4_k_m', whose types have their own, got {recipe.group_size}"
            )
        return
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


def _bytes_of_folder(path: Path, stored: StoredTensors, recipe: Recipe) -> int:
    in_layers = {name for names in stored.layers for name in names}
    needed = 0
    for name, tensor in (read_headers(path) or {}).items():
        size = math.prod(tensor.shape)
        if name in in_layers and len(tensor.shape) == 2:
            needed += size * recipe.bits // 8 + size // recipe.group_size * _GROUP_BYTES
        else:
            needed += size * (4 if tensor.dtype == "F32" else 2)
    return needed


def _check_space(folder: Path, num_bytes: int) -> None:
    needed = num_bytes + _SPARE_BYTES
    if needed > (free := shutil.disk_usage(folder).free):
        raise CheckpointError(f"'OUT': expected {gib(needed)} of free space, got {gib(free)}")
