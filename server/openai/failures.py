"""Failures as REST clients are told of them: fields by their JSON paths, and the error object."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from google.protobuf.descriptor import Descriptor

from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.paths import as_given, json_path
from glimpse.server.rpc.errors import InvalidRequest, RpcFailure, to_status


def in_json_terms(error: Exception, request_type: Descriptor, aliased: Mapping[str, str]) -> RpcFailure:
    """The failure of a request of this type, whose client knows nothing of protos.

    Args:
        error: what was raised.
        request_type: of the typed request.
        aliased: JSON paths of fields by their own names → those by which they were given, outer ones first.
    """
    if isinstance(error, DecodeError):
        failure = to_status(InvalidRequest(error.path or "", error.message, error.code))
        return replace(failure, field=error.path)
    failure = to_status(error)
    if failure.field is None:
        return failure
    path = as_given(json_path(request_type, failure.field), aliased)
    message = failure.message.replace(f"'{failure.field}'", f"'{path}'")
    return replace(failure, field=path or None, message=message)


def error_object(failure: RpcFailure) -> bytes:
    """The failure as OpenAI's error object."""
    error = {"message": failure.message, "type": failure.type, "param": failure.field, "code": failure.reason}
    return msgspec.json.encode({"error": error})
