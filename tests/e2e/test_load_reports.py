"""Load reports, direct and through Envoy; REST responses have none."""

import json
import os
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import grpc
import pytest

from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.v1 import load_pb2, load_pb2_grpc
from tests.e2e.node import NODE
from tests.e2e.stack import ROOT, Stack

PROGRAM = ROOT / "tests" / "e2e" / "last_report.cjs"
MODULES = ROOT / "examples" / "node" / "node_modules"
Report = load_pb2.StreamLoadReportsResponse


@pytest.fixture(params=["server", "Envoy"])
def target(stack: Stack, request: pytest.FixtureRequest) -> str:
    return stack.target if request.param == "server" else f"127.0.0.1:{stack.http_port}"


def last_report(target: str, path: str) -> tuple[int, Report]:
    """The status of an RPC and the report in its trailers."""
    command = [str(NODE), str(PROGRAM), target, path]
    environment = os.environ | {"NODE_PATH": str(MODULES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    output = json.loads(done.stdout)
    (report,) = output["reports"]
    return output["code"], Report.FromString(bytes.fromhex(report))


@pytest.mark.parametrize(
    ("path", "code"),
    [("/glimpse.v1.ModelService/ListModels", 0), ("/glimpse.v1.ChatService/StreamChatCompletion", 3)],
    ids=["answered", "refused"],
)
def test_each_rpc_ends_with_a_load_report(target: str, path: str, code: int) -> None:
    last_report(target, path)
    found, report = last_report(target, path)
    assert found == code
    assert report.rps_fractional > 0
    assert set(report.named_metrics) == {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"}


def test_streams_load_reports_through_envoy(target: str) -> None:
    service, _, method = ORCA_METHOD.rpartition(".")
    with grpc.insecure_channel(target) as channel:
        orca = channel.unary_stream(
            f"/{service}/{method}",
            request_serializer=load_pb2.StreamLoadReportsRequest.SerializeToString,
            response_deserializer=Report.FromString,
        )
        for stream in (load_pb2_grpc.LoadServiceStub(channel).StreamLoadReports, orca):
            reports = stream(load_pb2.StreamLoadReportsRequest(), timeout=100)
            assert [set(report.named_metrics) for report in islice(reports, 2)][1] >= {"num_requests_running"}
            reports.cancel()


def test_rest_responses_have_no_load_report(stack: Stack) -> None:
    with urllib.request.urlopen(f"{stack.openai_url}/models", timeout=100) as answer:
        assert not [name for name in answer.headers if "load" in name.lower()]


def test_reports_end_with_the_deadline(target: str) -> None:
    # The server ends them 0.3 s before that, by its own clock: a loaded machine needs some of it.
    def ending(_: int) -> grpc.StatusCode:
        with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = load_pb2_grpc.LoadServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.StreamLoadReports(load_pb2.StreamLoadReportsRequest(), timeout=6))
        return caught.value.code()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ending, range(8))) == {grpc.StatusCode.DEADLINE_EXCEEDED}
