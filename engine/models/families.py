"""Model registry: the module and the weight names for each supported model family."""

from pathlib import Path
from typing import TypeAlias, assert_never

from glimpse.engine.errors import CheckpointError
from glimpse.engine.model_config import AudioConfig, ModelConfig, VisionConfig, read_json
from glimpse.engine.models.qwen2_audio import Qwen2Audio
from glimpse.engine.models.qwen2_vl import Qwen2VL
from glimpse.engine.models.qwen2_vl_vision import PixelStatistics

Model: TypeAlias = Qwen2VL | Qwen2Audio


def make_model(path: Path, config: ModelConfig) -> Model:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    match config.encoder:
        case VisionConfig() as vision:
            return Qwen2VL(config.text, vision, _pixel_statistics(path))
        case AudioConfig() as audio:
            return Qwen2Audio(config.text, audio)
        case _:
            assert_never(config.encoder)


def _pixel_statistics(path: Path) -> PixelStatistics:
    processor = read_json(path / "preprocessor_config.json")
    try:
        return PixelStatistics(mean=tuple(processor["image_mean"]), std=tuple(processor["image_std"]))
    except KeyError as error:
        raise CheckpointError(f"preprocessor_config.json: missing field {error.args[0]!r}") from error
