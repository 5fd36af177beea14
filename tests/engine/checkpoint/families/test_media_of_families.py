"""What families say about media: their tokens, and the largest ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import DEFAULT_FPS
from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, TokenLayout
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.text.media_inputs import embedding_spec
from glimpse.engine.worker.layers.pixels import read_statistics
from glimpse.media.embeddings.embeddings import Embedding
from glimpse.media.embeddings.tensor import TensorType, make_tensor
from glimpse.media.kind import MediaKind
from glimpse.media.medium import Medium
from glimpse.media.processing.image import image_from_pixels
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.sizing.placement import ImageSource
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import video_from_pixels
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import make_gemma3_checkpoint
from tests.checkpoints.glm import make_glm4v_checkpoint
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.internvl import make_internvl_checkpoint
from tests.checkpoints.lfm2 import make_lfm2_vl_checkpoint
from tests.checkpoints.llava import make_llava_checkpoint, make_next_checkpoint, make_onevision_checkpoint
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.mistral3 import make_mistral3_checkpoint
from tests.checkpoints.paddleocr_vl import make_paddleocr_vl_checkpoint
from tests.checkpoints.paligemma import make_paligemma_checkpoint
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.checkpoints.qwen2_vl import PREPROCESSOR_CONFIG, make_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.checkpoints.ultravox import make_ultravox_checkpoint


def layout(medium: Medium, config: ModelConfig) -> TokenLayout:
    return family_of(config).layout(medium, LayoutContext(model=config, encode=lambda text: []))


def embedding(kind: MediaKind, grid: tuple[int, int, int], num_rows: int) -> Embedding:
    tensor = make_tensor(TensorType.FLOAT32, (num_rows, 1), bytes(4 * num_rows))
    return Embedding(kind=kind, tensor=tensor, grid=grid, num_tokens=num_rows, key=b"")


def test_qwen2_vl_has_a_token_for_each_square_of_patches(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    config = load_model_config(path)
    processing = family_of(config).read_media(path, config)
    assert processing.images is not None
    assert processing.videos is not None
    assert processing.audio is None
    image = image_from_pixels(
        np.zeros((56, 84, 3), np.uint8), processing.images.place(ImageSource(width=84, height=56)), processing.images
    )
    assert layout(image, config) == TokenLayout(kind=MediaKind.IMAGE, pieces=(6,))
    video = video_from_pixels(np.zeros((3, 56, 84, 3), np.uint8), processing.videos, frame_seconds=(), fps=None)
    assert layout(video, config) == TokenLayout(kind=MediaKind.VIDEO, pieces=(12,))
    assert layout(embedding(MediaKind.VIDEO, (2, 4, 6), 12), config).pieces == (12,)
    assert embedding_spec(config, processing).merge_size == 2


def test_qwen2_5_vl_places_frames_by_their_time(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, family="qwen2_5_vl")
    config = load_model_config(path)
    processing = family_of(config).read_media(path, config).videos
    assert processing is not None
    pixels = np.zeros((4, 56, 84, 3), np.uint8)
    video = video_from_pixels(pixels, processing, frame_seconds=(0, 0.25, 0.5, 0.75), fps=4)
    assert config.vision.tokens_per_second is not None
    per_second = config.vision.tokens_per_second * config.vision.temporal_patch_size
    assert layout(video, config).mrope_time_interval == per_second * 0.25
    timeless = embedding(MediaKind.VIDEO, (2, 4, 6), 12)
    assert layout(timeless, config).mrope_time_interval == per_second / DEFAULT_FPS
    assert layout(embedding(MediaKind.IMAGE, (1, 4, 6), 6), config).mrope_time_interval == 1


def test_qwen2_audio_has_a_token_for_four_frames(tmp_path: Path) -> None:
    config = load_model_config(make_audio_checkpoint(tmp_path))
    assert layout(embedding(MediaKind.AUDIO, (1, 1, 5), 5), config).pieces == (5,)
    medium = family_of(config).largest_medium(config, 100)
    assert medium is not None
    assert (medium.kind, medium.grid[0], medium.num_bytes) == (MediaKind.AUDIO, 1, 4 * medium.grid[1] * medium.grid[2])


@pytest.mark.parametrize(("num_tokens", "side"), [(100, 20), (110, 20), (1, 2)])
def test_largest_image_has_about_as_many_tokens(tmp_path: Path, num_tokens: int, side: int) -> None:
    config = load_model_config(make_checkpoint(tmp_path))
    medium = family_of(config).largest_medium(config, num_tokens)
    assert medium is not None
    assert (medium.kind, medium.grid) == (MediaKind.IMAGE, (1, side, side))
    assert medium.num_bytes == 3 * (14 * side) ** 2


def test_text_models_support_no_media(tmp_path: Path) -> None:
    path = make_text_checkpoint(tmp_path, "smollm2")
    config = load_model_config(path)
    family = family_of(config)
    assert family.read_media(path, config) == MediaProcessing()
    assert family.largest_medium(config, 100) is None
    assert embedding_spec(config, MediaProcessing()).kinds == frozenset()
    with pytest.raises(ValueError, match="does not support image input"):
        layout(embedding(MediaKind.IMAGE, (1, 2, 2), 1), config)


def nest(folder: Path) -> None:
    """Writes what a checkpoint says about media as transformers 5 does: all in one file."""
    parts = {"image_processor": "preprocessor_config.json", "video_processor": "video_preprocessor_config.json"}
    if (folder / "preprocessor_config.json").exists() and "feature_size" in read(folder / "preprocessor_config.json"):
        parts = {"feature_extractor": "preprocessor_config.json"}
    files = {part: folder / name for part, name in parts.items() if (folder / name).exists()}
    whole = folder / "processor_config.json"
    write_json(whole, (read(whole) if whole.exists() else {}) | {part: read(file) for part, file in files.items()})
    for file in files.values():
        file.unlink()


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "make",
    [
        make_checkpoint,
        make_qwen3_vl_checkpoint,
        make_audio_checkpoint,
        make_llava_checkpoint,
        make_next_checkpoint,
        make_onevision_checkpoint,
        make_idefics3_checkpoint,
        make_internvl_checkpoint,
        make_gemma3_checkpoint,
        make_paligemma_checkpoint,
        make_mistral3_checkpoint,
        make_glm4v_checkpoint,
        make_paddleocr_vl_checkpoint,
        make_lfm2_vl_checkpoint,
        make_minicpmv_checkpoint,
        make_ultravox_checkpoint,
    ],
)
def test_media_are_processed_as_one_file_says_that_transformers_5_writes(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    make(tmp_path)
    config = load_model_config(tmp_path)
    family = family_of(config)
    apart = family.read_media(tmp_path, config)
    nest(tmp_path)
    assert load_model_config(tmp_path) == config
    assert family.read_media(tmp_path, config) == apart


def test_the_file_of_transformers_5_precedes_the_older_one(tmp_path: Path) -> None:
    config = load_model_config(make_checkpoint(tmp_path))
    older = read(tmp_path / "preprocessor_config.json")
    newer = {**older, "max_pixels": 50_176, "image_mean": [0.5, 0.5, 0.5]}
    write_json(tmp_path / "processor_config.json", {"image_processor": newer})
    images = family_of(config).read_media(tmp_path, config).images
    assert images is not None
    assert images.sizing == SmartResize(min_pixels=3136, max_pixels=50_176)
    assert read_statistics(tmp_path).mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "value"), [("do_resize", False), ("do_rescale", False), ("do_normalize", False), ("rescale_factor", 1.0)]
)
@pytest.mark.parametrize("file", ["preprocessor_config.json", "video_preprocessor_config.json"])
def test_refuses_steps_that_qwens_processors_leave_out(tmp_path: Path, file: str, name: str, value: object) -> None:
    config = load_model_config(make_checkpoint(tmp_path))
    write_json(tmp_path / file, {**PREPROCESSOR_CONFIG, name: value})
    with pytest.raises(ValueError, match=rf"^{file}: '{name}': expected"):
        family_of(config).read_media(tmp_path, config)
