"""Boxes in answers are found in the formats of the served families. The page's own code runs in Node."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.node import NODE
from tests.paths import ROOT

PAGE = ROOT / "gateway" / "page"
PROGRAM = """
import { buildSync } from "esbuild";
const [source] = buildSync({ entryPoints: ["src/boxes.ts"], bundle: true, format: "esm", write: false }).outputFiles;
const { findBoxes } = await import(`data:text/javascript,${encodeURIComponent(source.text)}`);
const cases = JSON.parse(process.argv[1]);
console.log(JSON.stringify(cases.map(({ text, seen, scale }) => findBoxes(text, seen, scale))));
"""
SEEN = {"model": "other", "width": 1000, "height": 500}
HALF = [("cat", 0.1, 0.2, 0.5, 0.6)]

CASES = {
    "Qwen2-VL": ("<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(500,600)<|box_end|>", {}, HALF),
    "Qwen2-VL without special tokens": ("cat(100,200),(500,600)", {}, HALF),
    "Qwen3-VL": ('```json\n[{"bbox_2d": [100, 200, 500, 600], "label": "cat"}]\n```', {"model": "Qwen3-VL-4B"}, HALF),
    # Pixels of the image as the model saw it.
    "Qwen2.5-VL": (
        '[{"label": "cat", "bbox_2d": [100.8, 100.8, 504, 302.4]}]',
        {"model": "Qwen/Qwen2.5-VL-3B-Instruct", "width": 1008, "height": 504},
        HALF,
    ),
    "InternVL": ("A <ref>cat</ref><box>[[100, 200, 500, 600]]</box> sits.", {}, HALF),
    "InternVL, several": (
        "<ref>cat</ref><box>[[100, 200, 500, 600], [0, 0, 1000, 1000]]</box>",
        {},
        [*HALF, ("cat", 0, 0, 1, 1)],
    ),
    "MiniCPM-V": ("<ref>cat</ref><box>100 200 500 600</box>", {}, HALF),
    "Gemma": ('[{"box_2d": [200, 100, 600, 500], "label": "cat"}]', {}, HALF),
    "LLaVA": ("The cat is at [0.1, 0.2, 0.5, 0.6].", {}, [("", 0.1, 0.2, 0.5, 0.6)]),
    "no box": ("There are 4 cats: [1, 2, 3, 4], and f(1,2).", {}, []),
    "no area": ('{"bbox_2d": [500, 600, 100, 200], "label": "cat"}', {}, []),
    "outside": ('{"bbox_2d": [100, 200, 5000, 6000], "label": "cat"}', {}, []),
    "a label with a quote": (
        '{"bbox_2d": [100, 200, 500, 600], "label": "a \\"cat\\""}',
        {},
        [('a "cat"', *HALF[0][1:])],
    ),
    "chosen unit": ("cat(100,100),(500,300)", {"scale": "pixel"}, HALF),
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    """What the page finds in each case."""
    if not (PAGE / "node_modules").exists():
        pytest.skip("the page's packages are not installed; run `make set-up-dev`, or `npm ci` in gateway/page")
    asked = [
        {"text": text, "seen": SEEN | changes, "scale": changes.get("scale", "auto")}
        for text, changes, _ in CASES.values()
    ]
    command: list[str | Path] = [NODE, "--input-type=module", "--eval", PROGRAM, json.dumps(asked)]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, text=True, check=True, timeout=120)
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_finds_boxes(case: str, found: dict[str, list[dict[str, Any]]]) -> None:
    expected = CASES[case][2]
    boxes = found[case]
    assert [box["label"] for box in boxes] == [label for label, *_ in expected]
    for box, (_, *corners) in zip(boxes, expected, strict=True):
        assert [box[name] for name in ("x1", "y1", "x2", "y2")] == pytest.approx(corners)
