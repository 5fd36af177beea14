"""Reads gRPC errors."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Returns the status and the message with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


def details(error: Any) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.BadRequest]:
    status = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad_request)
    return info, bad_request
