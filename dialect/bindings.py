"""The methods of a REST facade and the typed methods behind them, from the `glimpse.json.v1.binding` option."""

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from glimpse.dialect.options import binding_option


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One facade method."""

    facade: MethodDescriptor
    """The method whose bodies are JSON."""
    unary: MethodDescriptor
    """The typed method that it stands for."""
    stream: MethodDescriptor | None
    """The typed method that streams the response."""
    stream_member: str | None
    """The boolean member of the JSON request that selects `stream`."""
    stream_end: str | None
    """The data of the event that ends a stream."""


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
            )
