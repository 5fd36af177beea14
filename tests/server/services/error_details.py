"""Reads the details of gRPC errors."""

from typing import Any

from google.rpc import error_details_pb2, status_pb2


def details(error: Any) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad_request)
    return info, bad_request
