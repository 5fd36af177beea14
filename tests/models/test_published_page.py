"""docs/models.md: its tables follow from the published checkpoints."""

import re

from models.published.page import with_tables
from models.published.table import load_table
from tests.paths import ROOT

DOCUMENT = "before\n<!-- families -->\nold\n<!-- end -->\nbetween\n<!-- checkpoints -->\n<!-- end -->\nafter\n"


TABLE = [
    each
    for each in load_table()
    if each.family in ("Mistral 7B", "Qwen2-Audio") or each.name == "Qwen/Qwen2-VL-7B-Instruct"
]


def test_tables_have_every_checkpoint_and_the_text_around_them_stays() -> None:
    page = with_tables(DOCUMENT, TABLE)
    assert re.sub(r"(?s)(<!-- (?:families|checkpoints) -->\n).*?(?=<!-- end)", r"\1", page) == DOCUMENT.replace(
        "old\n", ""
    )
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ") for row in page.splitlines() if row[:1] == "|"}
    # Models with images come first, then those with audio.
    assert [name for name in rows if name in {each.family for each in TABLE}] == [
        "Qwen2-VL",
        "Qwen2-Audio",
        "Mistral 7B",
    ]
    assert rows["Qwen2-Audio"][2:4] == ["text, audio", "no"]
    assert rows["Mistral 7B"][3] == "some"
    for checkpoint in TABLE:
        row = rows[f"[{checkpoint.name}](https://huggingface.co/{checkpoint.name})"]
        memory = [float(cell) for cell in row[2:5]]
        assert memory == sorted(memory, reverse=True)
        assert memory[0] > (checkpoint.num_parameters or 0) * 2 / (1 << 30) + 1


def test_models_to_begin_with_fit_the_memory_that_is_named() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    suggested = re.findall(r"^\| (\d+) GiB \| `(\S+)`( with `--quantization int8`)? \|$", page, re.MULTILINE)
    assert suggested
    for free, name, quantized in suggested:
        (row,) = re.findall(rf"^\| \[{re.escape(name)}\].*$", page, re.MULTILINE)
        memory = row.split(" | ")[3 if quantized else 2]
        assert float(memory) <= float(free)
