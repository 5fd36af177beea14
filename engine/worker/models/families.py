"""Builds the model of a checkpoint's family."""

from importlib import import_module
from pathlib import Path

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.models.model import Model


def make_model(path: Path, config: ModelConfig) -> Model:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    module = import_module(f"glimpse.engine.worker.models.{family_of(config).module}")
    return module.make_model(path, config)
