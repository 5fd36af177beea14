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
from tests.checkpoints.files import write_json
from tests.checkpoints.phi3v import PREPROCESSOR_CONFIG, SIDE, make_phi3v_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this file alone, because `read` writes in it."""
    return make_phi3v_checkpoint(tmp_path_factory.mktemp("phi3v"))


def read(path: Path, **fields: Any) -> MediaProcessing:
    write_json(path / "preprocessor_config.json", PREPROCESSOR_CONFIG | fields)
    return read_media(path, load_model_config(path))


def test_reads_published_fields(checkpoint: Path) -> None:
    sizing = HdTiles(tile=SIDE, max_tiles=16)
    images = ImageProcessing(sizing=sizing, resampling=Resampling.BILINEAR)
    assert read(checkpoint, num_crops=16) == MediaProcessing(images=images)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"num_crops": 0}, "'num_crops': expected a positive integer, got 0"),
        ({"num_crops": 65}, "'num_crops': expected at most 64, got 65"),
        ({"num_img_tokens": 144}, "'num_img_tokens': expected 4, got 144"),
    ],
)
def test_refuses_other_processing(checkpoint: Path, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(checkpoint, **fields)


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
    spec = embedding_spec(config, read(checkpoint))
    assert (spec.kinds, spec.hidden_size, spec.merge_size) == ({MediaKind.IMAGE}, 64, None)
