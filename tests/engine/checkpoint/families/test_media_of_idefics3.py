"""What SmolVLM's and Idefics3's preprocessor files say, and what of it is refused."""

from pathlib import Path

import pytest
from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.idefics3 import in_words
from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.processing.frame_sampling import IntervalSampling
from glimpse.media.processing.sizing.split_tiles import SplitTiles
from glimpse.media.processing.sizing.square_frames import SquareFrames
from tests.checkpoints.files import write_json
from tests.checkpoints.idefics3 import make_idefics3_checkpoint, preprocessor_config
from tests.engine.checkpoint.families.changed_media import media_of, media_refused

CHECKPOINT = make_idefics3_checkpoint


def test_reads_published_fields(checkpoint: Path, tmp_path: Path) -> None:
    sampling = {"fps": 2, "max_frames": 8, "video_size": {"longest_edge": 64}}
    processing = media_of(checkpoint, tmp_path, video_sampling=sampling)
    assert processing.images is not None
    assert processing.videos is not None
    assert processing.images.sizing == SplitTiles(tile=32, longest_edge=128)
    assert processing.images.resampling is Resampling.LANCZOS
    assert processing.videos.sizing == SquareFrames(tile=32, longest_edge=64)
    assert processing.videos.sampling == IntervalSampling(fps=2, max_frames=8)


def test_images_may_stay_whole(checkpoint: Path, tmp_path: Path) -> None:
    images = media_of(checkpoint, tmp_path, do_image_splitting=False, resample=3).images
    assert images is not None
    assert images.sizing == SplitTiles(tile=32, longest_edge=128, split=False)
    assert images.resampling is Resampling.BICUBIC


def test_videos_may_have_a_file_of_their_own(checkpoint: Path, tmp_path: Path) -> None:
    document = preprocessor_config("smolvlm")
    sampling = {"fps": 1, "max_frames": 5, "video_size": {"longest_edge": 16}}
    write_json(tmp_path / "video_preprocessor_config.json", document | {"video_sampling": sampling})
    videos = media_of(checkpoint, tmp_path, video_sampling=None).videos
    assert videos is not None
    assert (videos.sampling, videos.sizing.plan(1, 9, 9).through) == (IntervalSampling(max_frames=5), (16, 16))


def test_idefics3_reads_no_videos(tmp_path: Path) -> None:
    path = make_idefics3_checkpoint(tmp_path, "idefics3")
    assert read_media(path, load_model_config(path)).videos is None


test_refuses_other_processing = media_refused(
    ({"do_resize": False}, "'do_resize': expected true, got False"),
    ({"rescale_factor": 1.0}, "'rescale_factor': expected 1/255, got 1.0"),
    ({"resample": 5}, r"'resample': expected 1 \(Lanczos\), 2 \(bilinear\) or 3 \(bicubic\), got 5"),
    ({"max_image_size": {"longest_edge": 48}}, "'max_image_size': expected vision_config.image_size.*32, got 48"),
    ({"size": {"height": 9, "width": 9}}, "'size': expected 'longest_edge' alone"),
    ({"size": {"longest_edge": 0}}, "'size.longest_edge': expected a positive integer, got 0"),
)


@pytest.mark.parametrize(("num_tokens", "tiles", "at_once"), [(1, 1, 1), (40, 10, 10), (400, 100, 16)])
def test_largest_image_has_about_as_many_tokens(checkpoint: Path, num_tokens: int, tiles: int, at_once: int) -> None:
    config = load_model_config(checkpoint)
    medium = family_of(config).largest_medium(config, num_tokens)
    assert medium is not None
    assert (medium.num_bytes, medium.num_positions) == (tiles * 32 * 32 * 3, at_once * 16)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (101, "one hundred and one"),
        (768, "seven hundred and sixty-eight"),
    ],
)
def test_numbers_in_words(number: int, words: str) -> None:
    assert in_words(number) == words
