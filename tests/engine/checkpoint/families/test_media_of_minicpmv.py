"""What MiniCPM-V's preprocessor file says, and what of it is refused."""

from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.models.minicpmv import ResampledEncoder, make_model
from glimpse.media.processing.frame_sampling import SegmentSampling, StrideSampling
from glimpse.media.processing.sizing.adaptive_slices import AdaptiveSlices
from glimpse.media.processing.sizing.scaled_frames import ScaledFrames
from tests.checkpoints.minicpmv import SCALE, make_minicpmv_checkpoint
from tests.engine.checkpoint.families.changed_media import media_of, media_refused

CHECKPOINT = make_minicpmv_checkpoint


def test_reads_published_fields(checkpoint: Path, tmp_path: Path) -> None:
    processing = media_of(checkpoint, tmp_path, max_slice_nums=4)
    assert processing.images is not None
    assert processing.images.sizing == AdaptiveSlices(scale=SCALE, patch_size=14, max_slices=4)
    assert processing.videos is not None
    assert processing.videos.sizing == ScaledFrames(scale=SCALE, patch_size=14)
    assert processing.videos.sampling == StrideSampling(fps=1, max_frames_at_rate=64)
    assert processing.audio is None


def test_version_4_5_packs_frames(tmp_path: Path) -> None:
    path = make_minicpmv_checkpoint(tmp_path, "4.5")
    videos = read_media(path, load_model_config(path)).videos
    assert videos is not None
    assert videos.sizing == ScaledFrames(scale=SCALE, patch_size=14, max_packs=180, max_packed=3)
    assert videos.sampling == SegmentSampling(fps=3, max_frames_at_rate=240, rounds_up=True)


def test_normalizes_as_the_file_says(checkpoint: Path, tmp_path: Path) -> None:
    encoder = make_model(checkpoint, load_model_config(checkpoint)).encoder
    assert isinstance(encoder, ResampledEncoder)
    statistics = encoder.tower.statistics
    assert (statistics.mean, statistics.std) == ((0.5, 0.4, 0.5), (0.5, 0.5, 0.4))
    media_of(checkpoint, tmp_path, norm_mean=[0.5])
    with pytest.raises(CheckpointError, match="expected three numbers in 'norm_mean'"):
        make_model(tmp_path, load_model_config(tmp_path))


test_refuses_other_processing = media_refused(
    ({"patch_size": 16}, "'patch_size': expected 14, got 16"),
    ({"image_feature_size": 64}, "'image_feature_size': expected 4, got 64"),
    ({"slice_mode": False}, "'slice_mode': expected True, got False"),
    ({"use_image_id": False}, "'use_image_id': expected True, got False"),
    ({"im_start": "<img>"}, "'im_start': expected '<image>', got '<img>'"),
    ({"max_slice_nums": 0}, "'max_slice_nums': expected a positive integer, got 0"),
    ({"scale_resolution": 5}, "'scale_resolution': expected at least a patch's side, got 5"),
)


@pytest.mark.parametrize(("num_tokens", "slices"), [(1, 2), (16, 3), (4000, 9)])
def test_largest_medium_has_about_as_many_tokens(checkpoint: Path, num_tokens: int, slices: int) -> None:
    config = load_model_config(checkpoint)
    medium = family_of(config).largest_medium(config, num_tokens)
    assert medium is not None
    assert (medium.num_bytes, medium.num_positions) == ((1 + slices) * 448 * 448 * 3, slices * 32 * 32)
