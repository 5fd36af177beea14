"""What the oracles of model families share. A file with a checkpoint of its own names what makes it: `CHECKPOINT`."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.media.processing.image import ImageProcessing
from tests.engine.harness import Harness, Prompt
from tests.engine.worker.models.steps import Steps


@pytest.fixture(scope="module")
def harness(checkpoint: Path) -> Harness:
    return Harness(checkpoint)


@pytest.fixture(scope="module")
def prompts(request: pytest.FixtureRequest) -> Mapping[str, Prompt]:
    return request.module.PROMPTS


@pytest.fixture(scope="module")
def processing(checkpoint: Path) -> ImageProcessing:
    """How the checkpoint says that images are processed."""
    images = read_media(checkpoint, load_model_config(checkpoint)).images
    assert images is not None
    return images


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives the tests of `Steps` the parameters that a file's class has."""
    if metafunc.cls is None or not issubclass(metafunc.cls, Steps):
        return
    parameters = {
        "name": metafunc.cls.names or list(getattr(metafunc.module, "PROMPTS", ())),
        "size": metafunc.cls.sizes,
        "num_blocks": metafunc.cls.blocks,
        "kernel": getattr(metafunc.cls, "kernels", ()),
        "block_size": getattr(metafunc.cls, "block_sizes", ()),
    }
    for name in metafunc.fixturenames:
        if name in parameters:
            metafunc.parametrize(name, parameters[name])
