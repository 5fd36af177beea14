"""Generates the tables of docs/models.md: `python -m models.published.page < OLD > NEW`.

Facts come from the table of published checkpoints; inputs from the families; sizes from models without values.
"""

import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import torch

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.protocol.config import EngineOptions
from glimpse.engine.worker.loading.load_engine import empty_model
from glimpse.engine.worker.loading.quantization_choice import memory_needs
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from models.published.table import PublishedCheckpoint, load_table

_GIB = 1 << 30
_SECTION = re.compile(r"(<!-- (families|checkpoints) -->\n).*?(<!-- end -->)", re.DOTALL)
_FAMILIES = (
    "| family | good for | inputs | tools | reasoning | billions | architecture |\n|---|---|---|---|---|---|---|\n"
)
_CHECKPOINTS = """\
| checkpoint | billions | memory, GiB | int8 | int4 | context | KV cache of 1,000 tokens, MiB | licence to check |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A checkpoint, with what follows from its configuration."""

    published: PublishedCheckpoint
    model: ModelConfig
    num_parameters: int
    needed: Sequence[int]
    """Bytes of memory that serving takes on a CPU with default options: not quantized, int8, int4."""

    @property
    def rank(self) -> tuple[bool, bool, str, int]:
        """Models with images come first, then those with audio, then those with text alone."""
        inputs = self.model.placeholder_ids
        return "image" not in inputs, not inputs, self.published.family, self.num_parameters


def with_tables(document: str, checkpoints: Iterable[PublishedCheckpoint]) -> str:
    """Returns the document with fresh tables of checkpoints, each between its markers."""
    rows = sorted(map(_row, checkpoints), key=lambda row: row.rank)
    tables = {"families": _family_table(rows), "checkpoints": _checkpoint_table(rows)}
    return _SECTION.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n{match[3]}", document)


def _row(published: PublishedCheckpoint) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = published.write(Path(name))
        model = load_model_config(folder)
        build = partial(
            empty_model, folder, model, torch.bfloat16, scale_dtype=torch.float32, num_ranks=1, backend="native"
        )
        needs = memory_needs(EngineOptions(), model, build, device=torch.device("cpu"), dtype=torch.bfloat16)
        return Row(
            published=published,
            model=model,
            num_parameters=sum(tensor.numel() for tensor in build(None).parameters()),
            needed=[size + needs.besides for size in needs.weights.values()],
        )


def _family_table(rows: Sequence[Row]) -> str:
    return _FAMILIES + "".join(
        _family(list(members)) for _, members in groupby(rows, key=lambda row: row.published.family)
    )


def _family(rows: Sequence[Row]) -> str:
    first = rows[0].published
    cells = [
        first.family,
        first.use,
        ", ".join(["text", *rows[0].model.placeholder_ids]),
        _share([row.published.tools or family_of(row.model).tool_template is not None for row in rows]),
        _share([row.published.reasoning for row in rows]),
        ", ".join(dict.fromkeys(_billions(row.num_parameters) for row in rows)),
        f"`{rows[0].model.architecture}`",
    ]
    return f"| {' | '.join(cells)} |\n"


def _share(answers: Sequence[bool]) -> str:
    return "yes" if all(answers) else "some" if any(answers) else "no"


def _checkpoint_table(rows: Sequence[Row]) -> str:
    return _CHECKPOINTS + "".join(map(_checkpoint, rows))


def _checkpoint(row: Row) -> str:
    text = row.model.text
    kv_bytes = CacheShape.of(text).block_bytes(1000, torch.bfloat16)
    cells = [
        f"[{row.published.name}](https://huggingface.co/{row.published.name})",
        _billions(row.num_parameters),
        *(f"{size / _GIB:.1f}" for size in row.needed),
        f"{text.max_position_embeddings:,}",
        f"{kv_bytes / (1 << 20):.0f}",
        row.published.licence,
    ]
    return f"| {' | '.join(cells)} |\n"


def _billions(number: int) -> str:
    return f"{number / 1e9:.2g}"


def main() -> None:
    """Rewrites the document on standard input to standard output."""
    sys.stdout.write(with_tables(sys.stdin.read(), load_table()))


if __name__ == "__main__":
    main()
