"""Headers of requests to the server itself: large ones, ones that must not be logged, and the host of the metrics."""

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glimpse.v1 import model_pb2, model_pb2_grpc
from tests import http2
from tests.e2e.stack import Served
from tests.server.serving import served
from tests.waiting import eventually

LIST_MODELS = "/glimpse.v1.ModelService/ListModels"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path, folder: Path) -> Iterator[Served]:
    with served(tiny_checkpoint, folder) as running:
        yield running


def list_models(server: Served, *metadata: tuple[str, str]) -> dict[str, Any]:
    """Returns the headers of the response."""
    with server.channel() as channel:
        _, call = model_pb2_grpc.ModelServiceStub(channel).ListModels.with_call(
            model_pb2.ListModelsRequest(), metadata=metadata, timeout=30
        )
        return dict(call.initial_metadata())


def test_accepts_more_metadata_than_the_gateway_lets_pass(server: Served) -> None:
    for _ in range(20):  # gRPC's softer limit refuses at random
        list_models(server, ("x-large", "x" * (64 << 10)))


@pytest.mark.parametrize(
    ("sent", "kept"), [("req/1?a=b;c", True), ("x" * 128, True), ("x" * 129, False), ("a b", False)]
)
def test_keeps_request_ids_of_visible_ascii(server: Served, sent: str, kept: bool) -> None:
    assert (list_models(server, ("x-request-id", sent))["x-request-id"] == sent) == kept


async def test_logs_no_header_values(server: Served, folder: Path) -> None:
    own = [("x-request-id", "of-this-test"), ("x-key", "CANARY\xe9")]
    async with http2.connect(server.port) as client:
        client.request([*http2.grpc_headers(LIST_MODELS, server.port), *own], bytes(5))
        await client.settle()
        log = folder / "serve.log"
        assert eventually(lambda: "of-this-test" in log.read_text())
    assert "CANARY" not in log.read_text()


def test_metrics_are_served_under_names_of_this_machine_only(server: Served) -> None:
    def status(host: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.metrics_port, timeout=10)
        connection.request("GET", "/metrics", headers={"host": host})
        with contextlib.closing(connection), connection.getresponse() as answer:
            return answer.status

    hosts = ("localhost", f"127.0.0.1:{server.metrics_port}", "[::1]:9", "evil.example", "evil.example:9090")
    assert list(map(status, hosts)) == [200, 200, 200, 403, 403]
