"""What Phi-3.5-vision's preprocessor file says, and what of it is refused."""

from pathlib import Path
from typing import Any

import pytest
from PIL.Image import Resampling

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.text.media_inputs import embedding_spec, read_media
from glimpse.media.kind import MediaKind
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.hd_tiles import HdTiles
from tests.checkpoints.phi3v import SIDE, make_phi3v_checkpoint
from tests.engine.checkpoint.families.changed_media import media_of, media_refused

CHECKPOINT = make_phi3v_checkpoint


def test_reads_published_fields(checkpoint: Path, tmp_path: Path) -> None:
    sizing = HdTiles(tile=SIDE, max_tiles=16)
    images = ImageProcessing(sizing=sizing, resampling=Resampling.BILINEAR)
    assert media_of(checkpoint, tmp_path, num_crops=16) == MediaProcessing(images=images)


test_refuses_other_processing = media_refused(
    ({"num_crops": 0}, "'num_crops': expected a positive integer, got 0"),
    ({"num_crops": 65}, "'num_crops': expected at most 64, got 65"),
    ({"num_img_tokens": 144}, "'num_img_tokens': expected 4, got 144"),
)


@pytest.mark.parametrize(("num_tokens", "columns"), [(1, 1), (16, 1), (21, 3), (4000, 64)])
def test_largest_medium_has_about_as_many_tokens(checkpoint: Path, num_tokens: int, columns: int) -> None:
    config = load_model_config(checkpoint)
    medium = family_of(config).largest_medium(config, num_tokens)
    encoder: Any = config.encoder
    assert medium is not None
    assert (medium.kind, medium.grid, medium.num_bytes) == (MediaKind.IMAGE, (1, columns), columns * 56 * 56 * 3)
    assert medium.num_positions == min(columns, 16) * 17
    assert num_tokens == 1 or encoder.num_tokens(*medium.grid) <= num_tokens


def test_accepts_embeddings_of_images(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    spec = embedding_spec(config, read_media(checkpoint, config))
    assert (spec.kinds, spec.hidden_size, spec.merge_size) == ({MediaKind.IMAGE}, 64, None)
