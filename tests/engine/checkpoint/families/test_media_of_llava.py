"""What LLaVA's checkpoints say about media, and what of it is refused by name; their largest media are encoded."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.core.plan import Encode
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.media.processing.sizing.any_res import AnyRes
from glimpse.media.processing.sizing.fixed_size import FixedSize
from glimpse.media.processing.sizing.square_frames import SquareFrames
from tests.checkpoints.llava import (
    NEXT_RESOLUTIONS,
    RESOLUTIONS,
    SIDE,
    TILE,
    make_llava_checkpoint,
    make_next_checkpoint,
    make_onevision_checkpoint,
)
from tests.engine.checkpoint.families.changed_media import media_of, media_refused

CHECKPOINT = make_llava_checkpoint
SQUARE = {"height": SIDE, "width": SIDE}


@pytest.fixture(scope="module")
def onevision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_onevision_checkpoint(tmp_path_factory.mktemp("onevision"))


@pytest.fixture(scope="module")
def next_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_next_checkpoint(tmp_path_factory.mktemp("next"))


@pytest.mark.parametrize(
    ("changes", "sizing"),
    [
        ({}, FixedSize(side=SIDE, shortest_edge=SIDE)),
        ({"size": SIDE, "crop_size": SIDE}, FixedSize(side=SIDE, shortest_edge=SIDE)),
        ({"size": {"shortest_edge": 60}}, FixedSize(side=SIDE, shortest_edge=60)),
        ({"size": SQUARE, "do_center_crop": False, "crop_size": None}, FixedSize(side=SIDE)),
    ],
)
def test_images_of_llava_have_the_encoders_size(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], sizing: FixedSize
) -> None:
    processing = media_of(checkpoint, tmp_path, **changes)
    assert processing.images is not None
    assert processing.images.sizing == sizing
    assert (processing.videos, processing.audio) == (None, None)


test_refuses_other_processing_of_llava = media_refused(
    ({"size": {"shortest_edge": 40}}, "'size.shortest_edge': expected at least the encoder's 56 pixels, got 40"),
    ({"size": {"height": 40, "width": 40}}, "'size': expected the encoder's 56 pixels"),
    ({"crop_size": {"height": 56, "width": 40}}, "'crop_size': expected the encoder's 56 pixels"),
    ({"crop_size": None}, "'crop_size': expected the encoder's 56 pixels in height and width, got None"),
    ({"do_center_crop": False}, "'do_center_crop': expected true, got False"),
    ({"do_pad": True}, "'do_pad': expected false, got True"),
    ({"do_normalize": False}, "'do_normalize': expected true, got False"),
    ({"rescale_factor": 1.0}, "'rescale_factor': expected 1/255, got 1.0"),
    ({"resample": 2}, r"'resample': expected 3 \(bicubic\), got 2"),
)


def test_images_of_onevision_are_tiled_and_frames_stretched(onevision: Path, tmp_path: Path) -> None:
    processing = media_of(onevision, tmp_path)
    assert processing.images is not None
    color = (122, 116, 104)  # the mean of the normalization
    sizing = AnyRes(tile=TILE, tile_patches=3, resolutions=RESOLUTIONS, padding=color)
    assert processing.images.sizing == sizing
    assert processing.videos is not None
    assert processing.videos.sizing == SquareFrames(tile=TILE, longest_edge=None)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("preprocessor_config.json", {"size": SQUARE}, "'size': expected the encoder's 47 pixels"),
        ("preprocessor_config.json", {"image_grid_pinpoints": [[47, 47]]}, "expected those of config.json"),
        ("preprocessor_config.json", {"image_grid_pinpoints": None}, "expected those of config.json"),
        ("preprocessor_config.json", {"image_mean": None}, "missing field 'image_mean'"),
        ("video_preprocessor_config.json", {"size": SQUARE}, "video_preprocessor_config.json: 'size': expected the"),
        ("video_preprocessor_config.json", {"image_std": [1, 1, 1]}, "'image_std': expected that of preprocessor_conf"),
    ],
)
def test_refuses_other_processing_of_onevision(
    onevision: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        media_of(onevision, tmp_path, file, **changes)


@pytest.mark.parametrize("changes", [{}, {"size": SIDE, "crop_size": SIDE}, {"size": SQUARE, "do_pad": None}])
def test_images_of_next_are_tiled_also_among_others(next_: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    processing = media_of(next_, tmp_path, **changes)
    sizing = AnyRes(tile=SIDE, tile_patches=4, resolutions=NEXT_RESOLUTIONS, tiles_several=True)
    assert processing.images is not None
    assert processing.images.sizing == sizing.among_others() == sizing
    assert (processing.videos, processing.audio) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": {"shortest_edge": 60}}, "'size': expected the encoder's 56 pixels in height and width, got"),
        ({"size": None}, "'size': expected the encoder's 56 pixels in height and width, got None"),
        ({"crop_size": {"height": 60, "width": 60}}, "'crop_size': expected the encoder's 56 pixels"),
        ({"image_grid_pinpoints": [[56, 112]]}, "'image_grid_pinpoints': expected those of config.json"),
        ({"do_rescale": False}, "'do_rescale': expected true, got False"),
        ({"resample": 2}, r"'resample': expected 3 \(bicubic\), got 2"),
    ],
)
def test_refuses_other_processing_of_next(next_: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        media_of(next_, tmp_path, **changes)


@pytest.mark.parametrize("num_tokens", [1, 40, 100])
@torch.inference_mode()
def test_encodes_the_largest_media(checkpoint: Path, next_: Path, onevision: Path, num_tokens: int) -> None:
    for path in (checkpoint, next_, onevision):
        config = load_model_config(path)
        medium = family_of(config).largest_medium(config, num_tokens)
        assert medium is not None
        model = load_model(path, config, torch.device("cpu"), torch.float32, lambda stage, fraction: None)
        content = memoryview(bytes(medium.num_bytes))
        (rows,) = model.encode([Encode(key=b"", kind=medium.kind, grid=medium.grid, content=content)])
        if path == checkpoint:
            assert len(rows) == max(num_tokens // 16, 1) * 16
        elif path == next_:  # 2 by 2 tiles of 4 by 4 patches, with a token after each row
            assert len(rows) == 16 + 8 * 9
        else:  # 3 by 3 tiles of 3 by 3 patches, reduced to about 4 tiles, with a token after each row
            assert len(rows) == 9 + 6 * 7
