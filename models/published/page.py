"""Generates the tables of docs/models.md: `python -m models.published.page < OLD > NEW`.

They follow from what `models.published.sizes` writes.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from glimpse.server.cli.local.recommend import PublishedModel, published_models

_GIB = 1 << 30
_SECTION = re.compile(r"(<!-- (families|checkpoints) -->\n).*?(<!-- end -->)", re.DOTALL)
_FAMILIES = (
    "| family | good for | inputs | tools | reasoning | billions | architecture |\n|---|---|---|---|---|---|---|\n"
)
_CHECKPOINTS = """\
| checkpoint | billions | memory, GiB | int8 | int4 | context | KV cache of 1,000 tokens, MiB | licence to check |
|---|---|---|---|---|---|---|---|
"""


def with_tables(document: str, models: Iterable[PublishedModel]) -> str:
    """Returns the document with fresh tables of checkpoints, each between its markers."""
    rows = sorted(models, key=_rank)
    tables = {"families": _family_table(rows), "checkpoints": _checkpoint_table(rows)}
    return _SECTION.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n{match[3]}", document)


def _rank(row: PublishedModel) -> tuple[bool, bool, str, int]:
    """Models with images come first, then those with audio, then those with text alone."""
    return "image" not in row.inputs, row.inputs == ["text"], row.family, row.parameters


def _family_table(rows: Sequence[PublishedModel]) -> str:
    return _FAMILIES + "".join(_family(list(members)) for _, members in groupby(rows, key=lambda row: row.family))


def _family(rows: Sequence[PublishedModel]) -> str:
    first = rows[0]
    cells = [
        first.family,
        first.use,
        _inputs([row.inputs for row in rows]),
        _share([row.tools for row in rows]),
        _share([row.reasoning for row in rows]),
        ", ".join(dict.fromkeys(_billions(row.parameters) for row in rows)),
        f"`{first.architecture}`",
    ]
    return f"| {' | '.join(cells)} |\n"


def _inputs(found: Sequence[Sequence[str]]) -> str:
    kinds = dict.fromkeys(kind for inputs in found for kind in inputs)
    return ", ".join(kind if all(kind in inputs for inputs in found) else f"{kind} (some)" for kind in kinds)


def _share(answers: Sequence[bool]) -> str:
    return "yes" if all(answers) else "some" if any(answers) else "no"


def _checkpoint_table(rows: Sequence[PublishedModel]) -> str:
    return _CHECKPOINTS + "".join(map(_checkpoint, rows))


def _checkpoint(row: PublishedModel) -> str:
    cells = [
        f"[{row.name}](https://huggingface.co/{row.name})",
        _billions(row.parameters),
        *(f"{size / _GIB:.1f}" for size in row.needed.values()),
        f"{row.context:,}",
        f"{1000 * row.kv_bytes / (1 << 20):.0f}",
        row.licence,
    ]
    return f"| {' | '.join(cells)} |\n"


def _billions(number: int) -> str:
    return f"{number / 1e9:.2g}"


def main() -> None:
    """Rewrites the document on standard input to standard output."""
    sys.stdout.write(with_tables(sys.stdin.read(), published_models()))


if __name__ == "__main__":
    main()
