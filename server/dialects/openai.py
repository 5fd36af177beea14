"""OpenAI's dialect over REST: its service, its rules, its events and its errors."""

import msgspec

from glimpse.dialect.openai import OPENAI as RULES
from glimpse.openai.v1 import openai_pb2
from glimpse.server.codec.codec import Codec
from glimpse.server.dialects.facade import RestDialect
from glimpse.server.rpc.errors import RpcFailure


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def _error(failure: RpcFailure) -> bytes:
    error = {"message": failure.message, "type": failure.type, "param": failure.field, "code": failure.reason}
    return msgspec.json.encode({"error": error})


OPENAI = RestDialect(
    service=openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"], codec=Codec(RULES), event=_event, error=_error
)
