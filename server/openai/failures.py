"""Failures as REST clients see them: fields by their JSON paths, and OpenAI's error object."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from google.protobuf.descriptor import Descriptor

from glimpse.server.errors import InvalidRequest
from glimpse.server.openai.document import DecodeError
from glimpse.server.openai.paths import json_path, with_sent_names
from glimpse.server.rpc.errors import RpcFailure, to_status


def rest_failure(error: Exception, request_type: Descriptor, aliased: Mapping[str, str], request_id: str) -> RpcFailure:
    """Describes an error to a REST client, who knows JSON names only.

    Args:
        error: the exception.
        request_type: the type of the typed request.
        aliased: JSON path by a field's own name → the path that the client used, outer paths first.
        request_id: the request's.
    """
    if isinstance(error, DecodeError):
        failure = to_status(InvalidRequest(error.path or "", error.message, error.code), request_id)
        return replace(failure, field=error.path)
    failure = to_status(error, request_id)
    if failure.field is None:
        return failure
    path = with_sent_names(json_path(request_type, failure.field), aliased)
    message = failure.message.replace(f"'{failure.field}'", f"'{path}'")
    return replace(failure, field=path or None, message=message)


def error_object(failure: RpcFailure) -> bytes:
    """Returns the failure as OpenAI's error object."""
    error = {"message": failure.message, "type": failure.type, "param": failure.field, "code": failure.reason}
    return msgspec.json.encode({"error": error})
