"""The folder of a checkpoint in GPTQ's format, version 1: written beside its place, and moved there once whole."""

import json
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.weight_files import INDEX_NAME, SINGLE_NAME
from glimpse.engine.worker.quantize.rounding import Rounded

_SHARD_BYTES = 1 << 30
"""Size from which a file with weights is written."""
_NOT_COPIED = shutil.ignore_patterns(
    ".*", "config.json", INDEX_NAME, *(f"*.{kind}" for kind in ("safetensors", "bin", "pt", "pth", "gguf", "onnx"))
)


@contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """Yields an empty folder that becomes `out` if the block ends well, and else is removed.

    Raises:
        CheckpointError: something is there, or the folder cannot be written.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CheckpointError(f"'OUT': expected a folder that is empty or not there, got {str(out)!r}")
    made: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        yield made
        made.chmod(0o755)  # as `mkdir` makes it
        made.replace(out)
    except OSError as error:
        raise CheckpointError(f"'OUT': {out.name!r} cannot be written: {error.strerror}") from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def copy_files(path: Path, folder: Path, quantization_config: dict[str, Any]) -> None:
    """Copies a checkpoint's files other than its weights, and says in `config.json` how these are quantized."""
    shutil.copytree(path, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
    config = json.loads((path / "config.json").read_bytes()) | {"quantization_config": quantization_config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def gptq_config(*, bits: int, group_size: int) -> dict[str, Any]:
    """Returns `quantization_config` of what `WeightWriter` writes."""
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "true_sequential": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }


def gptq_tensors(name: str, rounded: Rounded, bits: int) -> dict[str, Tensor]:
    """Returns what stands for the weight of a linear; see `weight_conversion`."""
    stem, num_inputs = name.removesuffix(".weight"), rounded.values.shape[1]
    group_size = num_inputs // rounded.scale.shape[1]
    return {
        f"{stem}.qweight": _words(rounded.values, bits).T.contiguous(),  # [in · bits / 32, out]
        f"{stem}.qzeros": _words((rounded.zero - 1).T, bits),  # [groups, out · bits / 32]
        f"{stem}.scales": rounded.scale.T.contiguous(),  # [groups, out]
        f"{stem}.g_idx": torch.arange(num_inputs, dtype=torch.int32) // group_size,
    }


def _words(values: Tensor, bits: int) -> Tensor:
    """uint8 [rows, fields] → int32 [rows, fields · bits / 32], a word's lowest bits first."""
    octets = values if bits == 8 else values[:, 0::2] | values[:, 1::2] << 4
    return octets.flatten().view(torch.int32).unflatten(0, (len(octets), -1))  # little-endian


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
        parts = gptq_tensors(name, tensor, self.bits) if isinstance(tensor, Rounded) else {name: tensor.contiguous()}
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
        self._files.append((file, [*self._held]))
        self._num_bytes += self._num_held
        self._held, self._num_held = {}, 0
