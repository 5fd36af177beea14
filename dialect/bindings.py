"""The methods of a REST facade and the typed methods behind them, from the `glimpse.json.v1.binding` option."""

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from glimpse.dialect.options import binding_option
from glimpse.json.v1 import annotations_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One facade method."""

    facade: MethodDescriptor
    """The method whose bodies are JSON."""
    unary: MethodDescriptor
    """The typed method that it stands for. It is unary, unless the body is a form or the response a file."""
    stream: MethodDescriptor | None
    """The typed method that streams the response."""
    stream_member: str | None
    """The boolean member of the JSON request that selects `stream`."""
    stream_end: str | None
    """The data of the event that ends a stream."""
    stream_ping: str | None
    """The field of the streamed messages that is sent while a stream is silent; None: a comment is."""
    form: annotations_pb2.FileForm | None
    """What the members of its body are, if that is a form."""
    content: str | None
    """The field of the responses of `unary` whose bytes are the body, if that is a file."""
    names_events: bool
    """Events are named: by the `type` of their documents, which is its first member."""


def bindings(service: ServiceDescriptor) -> Iterator[Binding]:
    """Returns the bound methods of a service, in declaration order."""
    pool = service.file.pool
    for method in service.methods:
        rule = binding_option(method)
        if rule.unary:
            yield Binding(
                facade=method,
                unary=pool.FindMethodByName(rule.unary),
                stream=pool.FindMethodByName(rule.stream) if rule.stream else None,
                stream_member=rule.stream_member or None,
                stream_end=rule.stream_end or None,
                stream_ping=rule.stream_ping or None,
                form=rule.form if rule.HasField("form") else None,
                content=rule.content or None,
                names_events=rule.names_events,
            )
