"""Failures as REST clients are told of them: fields by their JSON paths, and the error object."""

from dataclasses import replace

import msgspec
from google.protobuf.descriptor import Descriptor

from server.errors import InvalidRequest, RpcFailure, to_status
from server.openai.document import DecodeError
from server.openai.paths import json_path


def in_json_terms(error: Exception, request_type: Descriptor) -> RpcFailure:
    """The failure of a request of this type, whose client knows nothing of protos."""
    if isinstance(error, DecodeError):
        failure = to_status(InvalidRequest(error.path or "", error.message, error.code))
        return replace(failure, field=error.path)
    failure = to_status(error)
    if failure.field is None:
        return failure
    path = json_path(request_type, failure.field)
    message = failure.message.replace(f"'{failure.field}'", f"'{path}'")
    return replace(failure, field=path or None, message=message)


def error_object(failure: RpcFailure) -> bytes:
    """The failure as OpenAI's error object."""
    error = {"message": failure.message, "type": failure.type, "param": failure.field, "code": failure.reason}
    return msgspec.json.encode({"error": error})
