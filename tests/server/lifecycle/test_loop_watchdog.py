"""Servers under test are watched: one that holds its event loop fails the test that started it."""

from pathlib import Path

import pytest

from glimpse.v1 import model_pb2, model_pb2_grpc
from tests.server.serving import served
from tests.waiting import eventually

SPIN = """
import time
from glimpse.server.services.models import ModelHandlers
original = ModelHandlers.list_models
async def list_models(self, request, context):
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        pass
    return await original(self, request, context)
ModelHandlers.list_models = list_models
"""


def test_a_server_that_holds_its_event_loop_is_reported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Each test with a server shows that others are not reported."""
    with pytest.raises(AssertionError, match="list_models"):
        list_models_slowly(tiny_checkpoint, tmp_path)


def list_models_slowly(checkpoint: Path, folder: Path) -> None:
    with served(checkpoint, folder, prelude=SPIN) as server, server.channel() as channel:
        # Health is SERVING a moment before the watchdog begins.
        assert eventually(lambda: "Serving" in (folder / "serve.log").read_text())
        model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest(), timeout=20)
