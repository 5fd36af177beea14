"""docs/models.md: its tables follow from the published checkpoints. Those are recommended too."""

import re

import msgspec

from glimpse.server.cli.local.recommend import PublishedModel, published_models, recommend, recommendations_text
from models.published.page import with_tables
from models.published.table import load_table
from tests.paths import ROOT

DOCUMENT = "before\n<!-- families -->\nold\n<!-- end -->\nbetween\n<!-- checkpoints -->\n<!-- end -->\nafter\n"


TABLE = [
    each
    for each in published_models()
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
    published = {each.name: each.num_parameters or 0 for each in load_table()}
    for checkpoint in TABLE:
        row = rows[f"[{checkpoint.name}](https://huggingface.co/{checkpoint.name})"]
        memory = [float(cell) for cell in row[2:5]]
        assert memory == sorted(memory, reverse=True)
        assert memory[0] > published[checkpoint.name] * 2 / (1 << 30) + 1


def test_models_to_begin_with_fit_the_memory_that_is_named() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    suggested = re.findall(r"^\| (\d+) GiB \| `(\S+)`( with `--quantization int8`)? \|$", page, re.MULTILINE)
    assert suggested
    for free, name, quantized in suggested:
        (row,) = re.findall(rf"^\| \[{re.escape(name)}\].*$", page, re.MULTILINE)
        memory = row.split(" | ")[3 if quantized else 2]
        assert float(memory) <= float(free)


def model(name: str, family: str, billions: float, *, generates: bool = True) -> PublishedModel:
    size = int(billions * 1e9)
    return PublishedModel(
        name=name,
        family=family,
        use="",
        inputs=["text"],
        tools=False,
        reasoning=False,
        licence="MIT",
        architecture="",
        parameters=size,
        context=4096,
        kv_bytes=1,
        needed={"none": 2 * size, "int8": size, "int4": size // 2},
        read={"none": 2 * size, "int8": size, "int4": size // 2},
        generates=generates,
    )


def test_recommends_the_largest_of_each_family_that_fits_and_is_fast_enough() -> None:
    models = [model("a/1", "A", 1), model("a/7", "A", 7), model("b/2", "B", 2), model("c/70", "C", 70)]
    models.append(model("d/1", "D", 1, generates=False))  # it embeds alone
    found = recommend(models, device="cpu", available=8 << 30, rate=12e9)
    assert [(each.model, each.flags) for each in found.models] == [
        ("b/2", "--quantization int8"),
        ("a/1", ""),  # 7 billion fit in int8, and in int4 read 3.5 GB for each token: 3.4 tokens/s
    ]
    assert [each.tokens_per_second for each in found.models] == [6.0, 6.0]
    assert found.too_large == ["C"]
    text = recommendations_text(found)
    assert "read at 11.2 GiB/s" in text
    assert "Too large or too slow here: C." in text
    assert "busy" not in text
    assert "busy (load 999.0)" in recommendations_text(msgspec.structs.replace(found, load=999.0))
    unknown = recommend(models, device="cpu", available=8 << 30, rate=None)
    assert [each.flags for each in unknown.models] == ["--quantization int8", ""]
    assert "–" in recommendations_text(unknown)
