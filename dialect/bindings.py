"""The facade's methods and the typed methods behind them, read from the `glimpse.json.v1.binding` option."""

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
    """The typed method that answers piece by piece."""
    stream_member: str | None
    """The boolean member of the JSON request that chooses `stream`."""
    stream_end: str | None
    """The text of the event that ends a stream."""


def bindings(service: ServiceDescriptor) -> Iterator[Binding]:
    """The bound methods of a service, in declaration order."""
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
