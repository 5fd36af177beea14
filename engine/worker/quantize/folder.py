"""The folder of a checkpoint in AWQ's or GPTQ's format: written beside its place, and moved there once it is whole."""

import json
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.weight_conversion import AWQ_NIBBLES
from glimpse.engine.worker.loading.weight_files import INDEX_NAME, SINGLE_NAME
from glimpse.engine.worker.quantize.rounding import Rounded

_SHARD_BYTES = 1 << 30
"""Size from which a file with weights is written."""
_WEIGHTS = {f".{kind}" for kind in ("safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "onnx_data")}
"""Files that are not copied: weights, also those of other programs."""


@contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """Yields an empty folder that becomes `out` if the block ends well, and else is removed.

    Raises:
        CheckpointError: something is there, or the folder cannot be written.
    """
    out = out.resolve()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CheckpointError(f"'OUT': expected a folder that is empty or not there, got {str(out)!r}")
    if out.suffix == ".gguf":
        raise CheckpointError(f"'OUT': expected the name of a folder, got {out.name!r}")
    made = out.parent / f".{out.name}-{os.getpid()}"
    try:
        made.mkdir(parents=True)
        yield made
        made.replace(out)
    except OSError as error:
        raise CheckpointError(f"'OUT': {out.name!r} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def copy_files(path: Path, folder: Path, quantization: dict[str, Any]) -> None:
    """Copies a checkpoint's files other than its weights, and says in `config.json` how these are quantized."""
    for file in path.rglob("*"):
        name = file.relative_to(path)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and not is_hidden and file.suffix not in _WEIGHTS and file.name != INDEX_NAME:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(file, folder / name)
    config = json.loads((path / "config.json").read_bytes()) | {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def quantization_config(*, bits: int, group_size: int, kept: Sequence[str]) -> dict[str, Any]:
    """Returns `quantization_config` of what `WeightWriter` writes: AWQ's format of 4 bits, GPTQ's of 8.

    Args:
        kept: modules that are not quantized.
    """
    common = {"bits": bits, "group_size": group_size, "modules_to_not_convert": list(kept)}
    if bits == 4:
        return common | {"quant_method": "awq", "version": "gemm", "zero_point": True}
    return common | {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "desc_act": False,
        "sym": True,
        "lm_head": False,
    }


def quantized_tensors(name: str, rounded: Rounded, bits: int) -> dict[str, Tensor]:
    """Returns what stands for the weight of a linear; `weight_conversion` reads it."""
    stem, values, zeros = name.removesuffix(".weight"), rounded.values, rounded.zero.T
    scales = {f"{stem}.scales": rounded.scale.T.contiguous()}  # [groups, out]
    if bits == 4:  # AWQ's
        # int32 [in, out / 8] and [groups, out / 8]
        return scales | {f"{stem}.qweight": _awq_words(values.T), f"{stem}.qzeros": _awq_words(zeros)}
    group_size = values.shape[1] // rounded.scale.shape[1]
    return scales | {
        f"{stem}.qweight": _words(values).T.contiguous(),  # [in / 4, out]
        f"{stem}.qzeros": _words(zeros - 1),  # [groups, out / 4]
        f"{stem}.g_idx": torch.arange(values.shape[1], dtype=torch.int32) // group_size,
    }


def _words(octets: Tensor) -> Tensor:
    """uint8 [rows, 4 · words] → int32 [rows, words], a word's lowest bits first."""
    return octets.flatten().view(torch.int32).unflatten(0, (len(octets), -1))  # little-endian


def _awq_words(values: Tensor) -> Tensor:
    """uint8 [rows, 8 · words], each below 16 → int32 [rows, words]"""
    nibbles = torch.empty_like(values).unflatten(1, (-1, len(AWQ_NIBBLES)))
    nibbles[..., AWQ_NIBBLES] = values.unflatten(1, (-1, len(AWQ_NIBBLES)))
    return _words((nibbles[..., 0::2] | nibbles[..., 1::2] << 4).flatten(1))


@dataclass(slots=True, kw_only=True)
class WeightWriter:
    """Writes tensors to files of about a GiB, so that no more are in memory."""

    folder: Path
    bits: int
    _held: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    _num_held: int = 0
    _files: list[tuple[Path, list[str]]] = field(default_factory=list[tuple[Path, list[str]]])
    _num_bytes: int = 0

    def write(self, name: str, tensor: Tensor | Rounded) -> None:
        """Takes a tensor, or the rounded weight of a linear."""
        parts = (
            quantized_tensors(name, tensor, self.bits) if isinstance(tensor, Rounded) else {name: tensor.contiguous()}
        )
        self._held |= parts
        self._num_held += sum(each.nbytes for each in parts.values())
        if self._num_held >= _SHARD_BYTES:
            self._flush()

    def finish(self) -> int:
        """Writes the last file, and the index if there are several. Returns the size of all tensors in bytes."""
        self._flush()
        if len(self._files) == 1:
            self._files[0][0].rename(self.folder / SINGLE_NAME)
            return self._num_bytes
        weight_map: dict[str, str] = {}
        for number, (file, names) in enumerate(self._files, start=1):
            title = f"model-{number:05}-of-{len(self._files):05}.safetensors"
            file.rename(self.folder / title)
            weight_map |= dict.fromkeys(names, title)
        index = {"metadata": {"total_size": self._num_bytes}, "weight_map": weight_map}
        (self.folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")
        return self._num_bytes

    def _flush(self) -> None:
        if not self._held:
            return
        file = self.folder / f"part-{len(self._files)}.safetensors"
        save_file(self._held, file, metadata={"format": "pt"})
        file.chmod((self.folder / "config.json").stat().st_mode)  # safetensors lets nobody else read it
        self._files.append((file, [*self._held]))
        self._num_bytes += self._num_held
        self._held, self._num_held = {}, 0
