"""Tests for streamed load reports over gRPC, under both method names.

gRPC clients do not expose the reports in trailers; for those see `tests.e2e.test_load_reports`.
"""

from itertools import islice

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from glimpse.server.services.load_reports import ORCA_METHOD
from glimpse.v1 import chat_pb2_grpc, load_pb2, load_pb2_grpc, model_pb2, model_pb2_grpc
from tests.server.requests import request, user

Report = load_pb2.StreamLoadReportsResponse


def asked(seconds: float = 0.1) -> load_pb2.StreamLoadReportsRequest:
    return load_pb2.StreamLoadReportsRequest(report_interval=Duration(nanos=int(seconds * 1e9)))


@pytest.mark.parametrize("by_name", [False, True], ids=["typed", "ORCA"])
def test_streams_load_reports(channel: grpc.Channel, by_name: bool) -> None:
    service, _, method = ORCA_METHOD.rpartition(".")
    stream = (
        channel.unary_stream(
            f"/{service}/{method}",
            request_serializer=load_pb2.StreamLoadReportsRequest.SerializeToString,
            response_deserializer=Report.FromString,
        )
        if by_name
        else load_pb2_grpc.LoadServiceStub(channel).StreamLoadReports
    )
    before = model_pb2_grpc.ModelServiceStub(channel).ListModels(model_pb2.ListModelsRequest())
    assert before.data
    reports = stream(asked(), timeout=20)
    for report in islice(reports, 3):
        assert report.rps_fractional > 0
        assert set(report.named_metrics) == {"kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"}
    reports.cancel()


def test_reports_running_requests(channel: grpc.Channel) -> None:
    long = request(user("Hello"), max_completion_tokens=2000, ignore_eos=True)
    streamed = chat_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(long)
    next(streamed)
    reports = load_pb2_grpc.LoadServiceStub(channel).StreamLoadReports(asked(), timeout=20)
    busy = next(report for report in reports if report.named_metrics["num_requests_running"])
    assert busy.application_utilization > 0
    streamed.cancel()
    assert next(report for report in reports if not report.named_metrics["num_requests_running"])
    reports.cancel()


def test_refuses_a_negative_interval(channel: grpc.Channel) -> None:
    reports = load_pb2_grpc.LoadServiceStub(channel).StreamLoadReports(
        load_pb2.StreamLoadReportsRequest(report_interval=Duration(seconds=-1))
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(reports)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
