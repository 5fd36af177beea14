"""What a gateway needs from the API's descriptors: files, services and HTTP paths.

Everything comes from the generated modules: nothing is compiled or read at run time. Independent of Envoy.
"""

import re
from collections.abc import Iterator

from google.api import httpbody_pb2
from google.protobuf import struct_pb2
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import error_details_pb2

from glimpse.anthropic.v1 import anthropic_pb2
from glimpse.dialect.options import http_option
from glimpse.dialect.typed_api import TYPED_FILES
from glimpse.openai.v1 import openai_pb2, responses_pb2

TYPED_PATHS = "/glimpse/v1/"
"""What the paths of the typed methods begin with. Their JSON is protobuf's."""

_HTTP_BODY = f".{httpbody_pb2.HttpBody.DESCRIPTOR.full_name}"

_ROOTS: tuple[FileDescriptor, ...] = (
    # Before the files with services, each of which gets it as an import.
    httpbody_pb2.DESCRIPTOR,
    *TYPED_FILES,
    openai_pb2.DESCRIPTOR,
    responses_pb2.DESCRIPTOR,
    anthropic_pb2.DESCRIPTOR,
    # No services: the gateway drops the body of an error if it does not know the messages in its details.
    error_details_pb2.DESCRIPTOR,
    struct_pb2.DESCRIPTOR,
)

VERBS = ("get", "put", "post", "delete", "patch")


def descriptor_set() -> FileDescriptorSet:
    """Returns every file of the API and its imports. Each file follows its imports."""
    files = FileDescriptorSet()
    for descriptor in _files():
        descriptor.CopyToProto(files.file.add())
    return files


def transcoder_set() -> FileDescriptorSet:
    """Returns the same files as the gateway's transcoder reads them.

    The typed methods are declared like those of the facade: their JSON passes to the server, which reads and writes it
    (`glimpse.server.rpc.json_messages`). The transcoder itself would drop unknown members without a word, hold whole
    bodies, and lose the status of a stream that fails.
    """
    files = descriptor_set()
    for file in files.file:
        if file.package == "glimpse.v1":
            _pass_bodies(file)
    return files


def _pass_bodies(file: FileDescriptorProto) -> None:
    for service in file.service:
        if httpbody_pb2.DESCRIPTOR.name not in file.dependency:
            file.dependency.append(httpbody_pb2.DESCRIPTOR.name)
        for method in service.method:
            declared = openai_pb2.DESCRIPTOR.pool.FindMethodByName(f"{file.package}.{service.name}.{method.name}")
            method.output_type = _HTTP_BODY
            # Without a body, the request is made of the URL.
            if http_option(declared).body:
                method.input_type = _HTTP_BODY
                method.client_streaming = True


def services() -> list[ServiceDescriptor]:
    """Returns every service of the API."""
    return [service for file in _files() for service in file.services_by_name.values()]


def transcoded_services() -> list[ServiceDescriptor]:
    """Returns the services that have methods with an HTTP path."""
    return [service for service in services() if any(list(bindings(method)) for method in service.methods)]


def http_paths() -> dict[str, list[str]]:
    """Returns the HTTP verbs of each path template, such as {"/v1/models/{model=**}": ["GET"]}."""
    verbs: dict[str, list[str]] = {}
    for service in services():
        for method in service.methods:
            for verb, template in bindings(method):
                verbs.setdefault(template, []).append(verb)
    return verbs


def path_regex(template: str) -> str:
    """Returns the regular expression for the paths that a `google.api.http` template matches."""
    wildcards = re.sub(r"{[^=}]+}", "*", template)
    wildcards = re.sub(r"{[^=}]+=([^}]+)}", r"\1", wildcards)
    patterns = {"**": ".+", "*": "[^/]+"}
    return "".join(patterns.get(part) or re.escape(part) for part in re.split(r"(\*+)", wildcards))


def _files() -> list[FileDescriptor]:
    found: dict[str, FileDescriptor] = {}

    def visit(file: FileDescriptor) -> None:
        if file.name not in found:
            for dependency in file.dependencies:
                visit(dependency)
            found[file.name] = file

    for root in _ROOTS:
        visit(root)
    return list(found.values())


def bindings(method: MethodDescriptor) -> Iterator[tuple[str, str]]:
    """Yields the (verb, path template) pairs of a method."""
    rule = http_option(method)
    for binding in (rule, *rule.additional_bindings):
        pattern = binding.WhichOneof("pattern")
        if pattern in VERBS:
            yield pattern.upper(), getattr(binding, pattern)
        elif pattern == "custom":
            yield binding.custom.kind, binding.custom.path
