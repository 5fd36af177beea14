"""Parameters of URLs: the gateway reads those that are fields of a request and drops all others."""

from urllib.parse import parse_qsl

from google.protobuf.descriptor import Descriptor, MethodDescriptor

from glimpse.dialect.options import http_option
from glimpse.near_names import NearNames
from glimpse.server.errors import InvalidRequest
from glimpse.server.field_path import path_text


def ignored_parameters(method: MethodDescriptor, url: str) -> list[str]:
    """Returns the parameters of a request that have no effect, each behind a question mark.

    Args:
        method: the one that serves the path. Requests that have a body have no parameters.
        url: the path and the parameters, as the client sent them.

    Raises:
        InvalidRequest: the name of one resembles that of a field.
    """
    _, _, query = url.partition("?")
    message = None if http_option(method).body else method.input_type
    names = dict.fromkeys(name for name, _ in parse_qsl(query, True))
    return [f"?{path_text((None, name))}" for name in names if not _is_field(name, message)]


def _is_field(name: str, message: Descriptor | None) -> bool:
    """Whether this is the name of a field, such as "reportInterval.seconds". Raises InvalidRequest for a near miss."""
    for part in name.split("."):
        fields = () if message is None else message.fields
        field = next((each for each in fields if part in (each.name, each.json_name)), None)
        if field is None:
            if (meant := NearNames(each.name for each in fields).nearest(part)) is not None:
                what = f"unknown parameter; did you mean '{meant}'?"
                raise InvalidRequest(path_text((None, name)), what, "unsupported")
            return False
        message = field.message_type
    return True
