"""Parameters of URLs: the gateway reads those that are fields of a request and drops all others."""

from urllib.parse import parse_qsl

from google.protobuf.descriptor import MethodDescriptor

from glimpse.near_names import NearNames
from glimpse.server.codec.scalars import decode_error
from glimpse.server.field_path import path_text
from glimpse.server.rpc.context import Rpc, metadata_value

PATH_HEADER = "x-envoy-original-path"
"""Has the path of a REST request and its parameters, as the client sent them."""


def ignored_parameters(method: MethodDescriptor, rpc: Rpc) -> list[str]:
    """Returns the parameters of a request that have no effect, each behind a question mark.

    Args:
        method: the facade's. Requests that have a body have no parameters.

    Raises:
        DecodeError: the name of one resembles that of a field.
    """
    _, _, query = (metadata_value(rpc.context, PATH_HEADER) or "").partition("?")
    fields = [] if method.client_streaming else method.input_type.fields
    known = {name for field in fields for name in (field.name, field.json_name)}
    unknown = [name for name in dict.fromkeys(name for name, _ in parse_qsl(query, True)) if name not in known]
    names = NearNames(field.name for field in fields)
    for name in unknown:
        if (meant := names.nearest(name)) is not None:
            raise decode_error(f"unknown parameter; did you mean '{meant}'?", (None, name), "unsupported")
    return [f"?{path_text((None, name))}" for name in unknown]
