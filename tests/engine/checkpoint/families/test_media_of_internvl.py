"""What InternVL's preprocessor files say, and what of it is refused."""

from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.processing.frame_sampling import SegmentSampling
from glimpse.media.processing.sizing.aspect_tiles import AspectTiles
from glimpse.media.processing.sizing.square_frames import SquareFrames
from tests.checkpoints.files import write_json
from tests.checkpoints.internvl import (
    PREPROCESSOR_CONFIG,
    TOKEN_IDS,
    make_internvl_checkpoint,
    make_original_checkpoint,
)
from tests.engine.checkpoint.families.changed_media import media_of, media_refused

CHECKPOINT = make_internvl_checkpoint


def test_reads_published_fields(checkpoint: Path, tmp_path: Path) -> None:
    processing = media_of(checkpoint, tmp_path, min_patches=2, max_patches=6)
    assert processing.images is not None
    assert processing.videos is not None
    assert processing.images.sizing == AspectTiles(tile=56, min_tiles=2, max_tiles=6)
    assert processing.videos.sizing == SquareFrames(tile=56, longest_edge=None)
    assert processing.videos.sampling == SegmentSampling()


test_refuses_other_processing = media_refused(
    ({"size": {"height": 28, "width": 28}}, "'size': expected the encoder's 56 pixels"),
    ({"resample": 2}, r"'resample': expected 3 \(bicubic\), got 2"),
    ({"do_rescale": False}, "'do_rescale': expected true, got False"),
    ({"max_patches": 0}, "'max_patches': expected a positive integer, got 0"),
    ({"min_patches": 7, "max_patches": 6}, "'min_patches': expected at most 6, got 7"),
)


def test_frames_are_normalized_as_images(checkpoint: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "video_preprocessor_config.json", PREPROCESSOR_CONFIG)
    assert media_of(checkpoint, tmp_path).videos is not None
    write_json(tmp_path / "video_preprocessor_config.json", PREPROCESSOR_CONFIG | {"image_mean": [0.5, 0.5, 0.5]})
    with pytest.raises(ValueError, match=r"'image_mean': expected that of preprocessor_config.json, got \[0.5"):
        media_of(checkpoint, tmp_path)


@pytest.mark.parametrize(("num_tokens", "tiles", "at_once"), [(1, 1, 1), (40, 10, 10), (400, 100, 16)])
def test_largest_medium_has_about_as_many_tokens(checkpoint: Path, num_tokens: int, tiles: int, at_once: int) -> None:
    config = load_model_config(checkpoint)
    medium = family_of(config).largest_medium(config, num_tokens)
    assert medium is not None
    assert (medium.num_bytes, medium.num_positions) == (tiles * 56 * 56 * 3, at_once * 17)


def test_the_original_layout_says_in_its_configuration_how_images_are_cut(checkpoint: Path, tmp_path: Path) -> None:
    path = make_original_checkpoint(checkpoint, tmp_path)
    document = read_json(path / "config.json")
    write_json(path / "config.json", {**document, "min_dynamic_patch": 2, "max_dynamic_patch": 6})
    config = load_model_config(path)
    processing = read_media(path, config)
    assert processing.images is not None
    assert processing.images.sizing == AspectTiles(tile=56, min_tiles=2, max_tiles=6)
    assert processing.videos == read_media(checkpoint, load_model_config(checkpoint)).videos
    write_json(path / "config.json", {**document, "min_dynamic_patch": 13})
    with pytest.raises(ValueError, match="'min_dynamic_patch': expected at most 12, got 13"):
        read_media(path, config)


def test_the_original_layout_ends_answers_as_its_chat_does(checkpoint: Path, tmp_path: Path) -> None:
    config = load_model_config(make_original_checkpoint(checkpoint, tmp_path))
    assert config.eos_token_ids == (TOKEN_IDS["<|im_end|>"],)
