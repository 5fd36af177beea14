"""Pixtral, Mistral 3, Ministral 3 and LightOnOCR: logits and greedy answers match transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.media.kind import MediaKind
from tests.checkpoints.mistral3 import PATCH, Kind, make_mistral3_checkpoint, merge_of, token_ids_of
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import LevelSteps, NativeSteps, agreement
from tests.oracles.mistral3 import greedy_answer

NUM_TOKENS = 8
PARTS: Mapping[str, tuple[int | tuple[int, int], ...]] = {
    "text": (150,),
    "one": (5, (3, 2), 9),
    "shapes": (3, (1, 1), 1, (2, 5), 1, (5, 1), 4, (3, 3), 6),
    "first": ((1, 4), 1),
    "equal": (2, (2, 3), (3, 2), 3),
}
"""Numbers of text tokens, and rows and columns of images in tokens."""
PROMPTS = PARTS


@pytest.fixture(scope="module", params=get_args(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mistral3_checkpoint(tmp_path_factory.mktemp("mistral3") / kind, kind=kind)


@pytest.fixture(scope="module")
def prompts(kind: Kind) -> Mapping[str, Prompt]:
    return prompts_of(kind)


def prompts_of(kind: Kind) -> dict[str, Prompt]:
    ids = token_ids_of(kind)

    def place(random: np.random.Generator, size: tuple[int, int]) -> PlacedMedium:
        rows, columns = size
        if kind == "lighton_ocr":
            token_ids, runs = [ids["<|image_pad|>"]] * (rows * columns), ((0, rows * columns),)
        else:
            row = [*[ids["[IMG]"]] * columns, ids["[IMG_BREAK]"]]
            token_ids = [*(row * rows)[:-1], ids["[IMG_END]"]]
            runs = tuple((index * (columns + 1), columns) for index in range(rows))
        merge = merge_of(kind)
        side = PATCH * merge
        return PlacedMedium(
            token_ids=token_ids,
            kind=MediaKind.IMAGE,
            grid=(1, rows * merge, columns * merge),
            content=random.integers(0, 256, (rows * side, columns * side, 3), dtype=np.uint8),
            runs=runs,
        )

    return {name: prompt_with(seed, parts, place) for seed, (name, parts) in enumerate(PARTS.items())}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(LevelSteps, NativeSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "shapes", ("one", "shapes")


def test_names_of_tensors_inside_transformers(tmp_path: Path, kind: Kind) -> None:
    path = make_mistral3_checkpoint(tmp_path / "own", kind=kind, names="nested")
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(prompts_of(kind)["one"]), NUM_TOKENS), path)


def test_contexts_end_where_queries_would_be_scaled(kind: Kind, checkpoint: Path) -> None:
    length = load_model_config(checkpoint).text.max_position_embeddings
    assert length == (256 if kind == "ministral3" else 512)


test_refuses_unsupported_configurations = refused(
    ({"vision_config": {"hidden_act": "gelu"}}, "'vision_config.hidden_act': expected 'silu', got 'gelu'"),
    ({"vision_config": {"model_type": "x"}}, "'vision_config.model_type': expected .* got 'x'"),
    ({"vision_feature_layer": -2}, "'vision_feature_layer': expected -1, got -2"),
    ({"projector_hidden_act": "silu"}, "'projector_hidden_act': expected 'gelu', got 'silu'"),
)
