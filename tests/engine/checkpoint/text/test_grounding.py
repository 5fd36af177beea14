"""Boxes and points in answers are found as each family writes them, in pixels of the image file."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.checkpoint.text.grounding import MAX_GROUNDINGS, find_groundings
from glimpse.media.processing.image import ImageSizing
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.patches.flex_tiles import FlexTiles
from glimpse.media.processing.sizing.patches.page_tiles import PageTiles
from glimpse.media.processing.sizing.placement import ImagePlacement, ImageSource
from glimpse.media.processing.sizing.smart_resize import SmartResize

Corners = tuple[float, ...]
"""Left, top, right and bottom; of a point x and y."""
SIDES = st.integers(40, 4000)
IMAGE = ImageSource(width=2000, height=1000)


def thousandths(values: Corners, width: int, height: int) -> list[int]:
    return [round(1000 * value / side) for value, side in zip(values, [width, height] * 2, strict=False)]


def qwen2(label: str, box: Corners, width: int, height: int) -> str:
    x1, y1, x2, y2 = thousandths(box, width, height)
    return f"<|object_ref_start|>{label}<|object_ref_end|><|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"


def qwen2_5(label: str, box: Corners, width: int, height: int) -> str:
    return f'```json\n[\n\t{{"bbox_2d": {[*map(round, box)]}, "label": "{label}"}}\n]\n```'


def qwen3(label: str, box: Corners, width: int, height: int) -> str:
    return f'```json\n[{{"bbox_2d": {thousandths(box, width, height)}, "label": "{label}"}}]\n```'


def internvl(label: str, box: Corners, width: int, height: int) -> str:
    return f"<ref>{label}</ref><box>[{thousandths(box, width, height)}]</box>"


def minicpmv(label: str, box: Corners, width: int, height: int) -> str:
    return f"<ref>{label}</ref><box>{' '.join(map(str, thousandths(box, width, height)))}</box>"


def gemma(label: str, box: Corners, width: int, height: int) -> str:
    x1, y1, x2, y2 = thousandths(box, width, height)
    return f'[{{"box_2d": [{y1}, {x1}, {y2}, {x2}], "label": "{label}"}}]'


def paligemma(label: str, box: Corners, width: int, height: int) -> str:
    x1, y1, x2, y2 = (
        min(1023, round(1024 * value / side)) for value, side in zip(box, [width, height] * 2, strict=True)
    )
    return f"<loc{y1:04}><loc{x1:04}><loc{y2:04}><loc{x2:04}> {label}"


def llava(label: str, box: Corners, width: int, height: int) -> str:
    x1, y1, x2, y2 = (f"{max(value / side, 0):.3f}" for value, side in zip(box, [width, height] * 2, strict=True))
    return f"The {label} is at [{x1}, {y1}, {x2}, {y2}]."


def glm(label: str, box: Corners, width: int, height: int) -> str:
    return f"The {label} is at <|begin_of_box|>[{thousandths(box, width, height)}]<|end_of_box|>."


def deepseek(label: str, box: Corners, width: int, height: int) -> str:
    numbers = [round(999 * value / side) for value, side in zip(box, [width, height] * 2, strict=True)]
    return f"<|ref|>{label}<|/ref|><|det|>[{numbers}]<|/det|>"


def lfm2(label: str, box: Corners, width: int, height: int) -> str:
    shares = [round(max(value / side, 0), 3) for value, side in zip(box, [width, height] * 2, strict=True)]
    return f'[{{"label": "{label}", "bbox": {shares}}}]'


Write = Callable[[str, Corners, int, int], str]
WAYS: dict[str, tuple[str, ImageSizing, Write, float, bool]] = {
    "Qwen2-VL": ("Qwen2VLForConditionalGeneration", SmartResize(), qwen2, 1000, True),
    "Qwen2-VL in JSON": ("Qwen2VLForConditionalGeneration", SmartResize(), qwen3, 1000, True),
    "Qwen2.5-VL": ("Qwen2_5_VLForConditionalGeneration", SmartResize(), qwen2_5, 0, True),
    "Qwen3-VL": ("Qwen3VLForConditionalGeneration", SmartResize(patch_size=16), qwen3, 1000, True),
    "Qwen3-VL with experts": ("Qwen3VLMoeForConditionalGeneration", SmartResize(patch_size=16), qwen3, 1000, True),
    "Qwen3.5": ("Qwen3_5ForConditionalGeneration", SmartResize(patch_size=16), qwen3, 1000, True),
    "Qwen3.5 with experts": ("Qwen3_5MoeForConditionalGeneration", SmartResize(patch_size=16), qwen3, 1000, True),
    "GLM-4.1V": ("Glm4vForConditionalGeneration", SmartResize(enlarges_slim=True), glm, 1000, False),
    "GLM-4.6V": ("Glm46VForConditionalGeneration", SmartResize(enlarges_slim=True), glm, 1000, False),
    "InternVL": ("InternVLForConditionalGeneration", AspectTiles(tile=448), internvl, 1000, True),
    "InternVL as published": ("InternVLChatModel", AspectTiles(tile=448), internvl, 1000, True),
    "MiniCPM-V": ("MiniCPMV", AdaptiveSlices(), minicpmv, 1000, True),
    "Gemma 3": ("Gemma3ForConditionalGeneration", FixedSize(side=896), gemma, 1000, True),
    "Gemma 3 with PaliGemma's tokens": ("Gemma3ForConditionalGeneration", FixedSize(side=896), paligemma, 512, True),
    "PaliGemma": ("PaliGemmaForConditionalGeneration", FixedSize(side=448), paligemma, 512, True),
    "DeepSeek-OCR-2": ("DeepseekOcr2ForConditionalGeneration", PageTiles(), deepseek, 999, True),
    "DeepSeek-OCR-2 as published": ("DeepseekOCR2ForCausalLM", PageTiles(tile=4096), deepseek, 999, True),
    "LFM2-VL": ("Lfm2VlForConditionalGeneration", FlexTiles(), lfm2, 1000, True),
    "LLaVA": ("LlavaForConditionalGeneration", FixedSize(side=336, shortest_edge=336), llava, 1000, False),
}
"""Family, recipe, what it writes, the steps of its coordinates along a side (0: pixels), and whether it has labels."""

# EXIF orientation → where (x, y) of a file of (width, height) is in the upright image.
UPRIGHT: dict[int, Callable[[float, float, int, int], tuple[float, float]]] = {
    1: lambda x, y, w, h: (x, y),
    2: lambda x, y, w, h: (w - x, y),
    3: lambda x, y, w, h: (w - x, h - y),
    4: lambda x, y, w, h: (x, h - y),
    5: lambda x, y, w, h: (y, x),
    6: lambda x, y, w, h: (h - y, x),
    7: lambda x, y, w, h: (h - y, w - x),
    8: lambda x, y, w, h: (y, w - x),
}


def seen_box(box: Corners, placement: ImagePlacement, sizing: ImageSizing) -> tuple[float, float, float, float]:
    """Returns the box in what the model sees."""
    source = placement.source
    height, width = source.upright
    ends = [UPRIGHT[source.orientation](x, y, source.width, source.height) for x, y in (box[:2], box[2:])]
    (x1, x2), (y1, y2) = (sorted(values) for values in zip(*ends, strict=True))
    shown_height, shown_width = placement.shown
    if (
        isinstance(sizing, FixedSize) and sizing.shortest_edge
    ):  # the center of an image whose shorter side has this length
        edge, shorter = sizing.shortest_edge, min(width, height)
        scale = edge / shorter
        # In integers: the product with the scale may be just below a whole number.
        shift_x, shift_y = ((side * edge // shorter - sizing.side) // 2 for side in (width, height))
        return x1 * scale - shift_x, y1 * scale - shift_y, x2 * scale - shift_x, y2 * scale - shift_y
    scale_x, scale_y = shown_width / width, shown_height / height
    return x1 * scale_x, y1 * scale_y, x2 * scale_x, y2 * scale_y


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=75)
@given(data=st.data(), width=SIDES, height=SIDES, orientation=st.integers(1, 8))
def test_boxes_come_back_within_a_pixel_that_the_model_sees(
    way: str, data: st.DataObject, width: int, height: int, orientation: int
) -> None:
    architecture, sizing, write, steps, has_label = WAYS[way]
    source = ImageSource(width=width, height=height, orientation=orientation)
    placement = ImagePlacement(source=source, plan=sizing.plan(*source.upright))
    (seen_left, seen_top), (seen_right, seen_bottom) = ((round(x), round(y)) for x, y in placement.seen)
    wide, high = seen_right - seen_left, seen_bottom - seen_top
    left = seen_left + data.draw(st.integers(0, wide * 2 // 3))
    top = seen_top + data.draw(st.integers(0, high * 2 // 3))
    box = (
        left,
        top,
        left + data.draw(st.integers(wide // 4, wide // 3)),
        top + data.draw(st.integers(high // 4, high // 3)),
    )
    shown_height, shown_width = placement.shown
    text = f"Here: {write('red car', seen_box(box, placement, sizing), shown_width, shown_height)}"
    (found,) = find_groundings(text, FAMILIES[architecture].grounding, placement, image_index=3)
    assert (found.label, found.image_index) == ("red car" if has_label else "", 3)
    # One pixel of what the model sees, or one step of the coordinates that it writes if that is more.
    turned = orientation >= 5
    across = [shown_height, shown_width] if turned else [shown_width, shown_height]
    errors = [side / min(seen, steps or seen) for side, seen in zip((wide, high), across, strict=True)]
    for index, (ours, theirs) in enumerate(zip((*found.corners[0], *found.corners[1]), box, strict=True)):
        assert abs(ours - theirs) <= errors[index % 2] + 1


def found_by(architecture: str, text: str, sizing: ImageSizing | None = None) -> list[tuple[str, Corners]]:
    plan = (sizing or FixedSize(side=1000)).plan(*IMAGE.upright)
    placement = ImagePlacement(source=IMAGE, plan=plan)
    groundings = find_groundings(text, FAMILIES[architecture].grounding, placement, image_index=0)
    return [(each.label, tuple(value for corner in each.corners for value in corner)) for each in groundings]


QWEN2, QWEN3 = "Qwen2VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"
CAT = ("cat", (200, 200, 1000, 600))
CASES: dict[str, tuple[str, str, list[Any]]] = {
    "points of Qwen3-VL": (QWEN3, '[{"point_2d": [100, 200], "label": "cat"}]', [("cat", (200, 200))]),
    "points of MiniCPM-V": ("MiniCPMV", "<ref>cat</ref><point>100 200</point>", [("cat", (200, 200))]),
    "points of Gemma": (
        "Gemma3ForConditionalGeneration",
        '{"point": [200, 100], "label": "cat"}',
        [("cat", (200, 200))],
    ),
    "several boxes with a label": (
        "InternVLChatModel",
        "A <ref>cat</ref><box>[[100, 200, 500, 600], [0, 0, 1000, 1000]]</box> sits.",
        [CAT, ("cat", (0, 0, 2000, 1000))],
    ),
    "several boxes of Qwen2-VL": (
        QWEN2,
        "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,200),(500,600)<|box_end|>"
        "<|box_start|>(0,0),(1000,1000)<|box_end|>",
        [CAT, ("cat", (0, 0, 2000, 1000))],
    ),
    "two forms, in the order of the text": (
        QWEN2,
        '{"bbox_2d": [0, 0, 1000, 1000]} <|box_start|>(100,200),(500,600)<|box_end|>',
        [("", (0, 0, 2000, 1000)), ("", CAT[1])],
    ),
    "several objects of PaliGemma": (
        "Gemma3ForConditionalGeneration",
        "<loc0512><loc0000><loc1023><loc0512> cat ; <loc0000><loc0000><loc0512><loc0512> dog",
        [("cat", (0, 500, 1000, 1000 * 1023 / 1024)), ("dog", (0, 0, 1000, 500))],
    ),
    "a label with braces and a quote": (
        QWEN3,
        r'{"label": "a \"{cat}\"", "bbox_2d": [100, 200, 500, 600]}',
        [('a "{cat}"', CAT[1])],
    ),
    "an object that max_tokens cut": (
        QWEN3,
        '[{"bbox_2d": [100, 200, 500, 600], "label": "cat"}, {"bbox_2d": [1, 2',
        [CAT],
    ),
    "a box that leaves the image": (QWEN3, '{"bbox_2d": [-50, 200, 1200, 600]}', [("", (0, 200, 2000, 600))]),
    "a label of another type": (QWEN3, '{"bbox_2d": [100, 200, 500, 600], "label": 5}', [("", CAT[1])]),
    "several boxes of GLM": (
        "Glm4vForConditionalGeneration",
        "<|begin_of_box|><100,200,500,600>, (0,0,1000,1000)<|end_of_box|> and <|begin_of_box|>1, 2, 3, 4<|end_of_box|>",
        [("", CAT[1]), ("", (0, 0, 2000, 1000))],
    ),
    "several boxes of DeepSeek-OCR-2": (
        "DeepseekOcr2ForConditionalGeneration",
        "<|ref|>cat<|/ref|><|det|>[[99.9, 199.8, 499.5, 599.4], [0, 0, 999, 999]]<|/det|>\n",
        [CAT, ("cat", (0, 0, 2000, 1000))],
    ),
    "no box": (QWEN3, "There are 4 cats: [1, 2, 3, 4], {}, {1}, and f(1,2).", []),
    "no area": (QWEN3, '{"bbox_2d": [500, 600, 100, 200]}', []),
    "outside": (QWEN3, '{"bbox_2d": [2000, 600, 3000, 700]}{"point_2d": [1001, 5]}', []),
    "three numbers": (QWEN3, '{"bbox_2d": [5, 6, 7]}', []),
    "no numbers": (QWEN3, '{"bbox_2d": ["1", null, true, {}]}', []),
    "numbers of another form": ("LlavaForConditionalGeneration", "[1, 2, 3, 4] [0.1, 0.2]", []),
    "an odd list": ("InternVLChatModel", "<box>[[1, 2, 3]]</box><box>cat</box>", []),
    "huge numbers": (QWEN3, f'{{"bbox_2d": [0, 0, {"9" * 6000}, 1e999]}} {{"point_2d": [1e308, 1e308]}}', []),
    "huge numbers in text": ("MiniCPMV", f"<box>0 0 {'9' * 6000} 5</box><point>{'9' * 400}.5 1</point>", []),
}


@pytest.mark.parametrize("case", CASES)
def test_finds_what_was_written(case: str) -> None:
    architecture, text, expected = CASES[case]
    found = found_by(architecture, text)
    assert [label for label, _ in found] == [label for label, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs)


HOSTILE = {
    "many boxes": '{"bbox_2d": [1, 2, 3, 4]}' * 100_000,
    "many tags": "<ref>a</ref><box>[[1, 2, 3, 4]]</box>" * 100_000,
    "a box of many numbers": f"<box>{'1 2 3 4 ' * 25_000}</box>",
    "open objects": "{" * 500_000,
    "open members": '{"a":' * 100_000,
    "open strings": '{"' * 250_000,
    "strings and braces": '{"a{"' * 100_000,
    "open tags": "<ref>" * 100_000 + "<box>" * 100_000,
    "open special tokens": "<|object_ref_start|>" * 25_000
    + "<|box_start|>" * 25_000
    + "<|ref|>" * 25_000
    + "<|begin_of_box|>[" * 25_000,
    "open brackets": "[0.1, " * 100_000,
    "nested lists": '{"bbox_2d": ' + "[" * 250_000 + "]" * 250_000 + "}",
    "location tokens": "<loc0001>" * 250_000,
    "backslashes": '{"' + "\\" * 500_001,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_give_bounded_results(text: str) -> None:
    """With quadratic time it would take hours. Families that write the same forms read them alike."""
    for architecture in {family.grounding: name for name, family in FAMILIES.items() if family.grounding}.values():
        assert len(found_by(architecture, text)) <= MAX_GROUNDINGS


def test_families_that_write_none_have_no_forms() -> None:
    silent = {architecture for architecture, family in FAMILIES.items() if family.reads_media and not family.grounding}
    assert silent == {
        "ColQwen2ForRetrieval",
        "ColPaliForRetrieval",
        "Qwen2AudioForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "UltravoxModel",
        "Phi3VForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "PixtralForConditionalGeneration",
        "GlmOcrForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
    }
    assert {way[0] for way in WAYS.values()} == {name for name, family in FAMILIES.items() if family.grounding}
