"""Where the server of `glimpse chat`, `glimpse models` and `glimpse batch` is, and how to connect to it."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import grpc.aio
from cyclopts import Parameter

from glimpse.client import Client, GlimpseError, Tls
from glimpse.client.channel import open_channel
from glimpse.client.requests import call_arguments
from glimpse.server.cli.chat.history import ChatHistory
from glimpse.server.lifecycle.addresses import address, local_host
from glimpse.usage import UsageError

_SCHEMES = {"http": 80, "grpc": 80, "https": 443, "grpcs": 443}
"""Schemes of URLs and their usual ports. Those that end in "s" mean TLS."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Flags that say where the server is."""

    host: Annotated[str, Parameter(env_var="GLIMPSE_HOST")] = "127.0.0.1"
    """Host of the server."""
    port: Annotated[int, Parameter(env_var="GLIMPSE_PORT")] = 50051
    """The gRPC port of the server."""
    target: Annotated[str | None, Parameter(env_var="GLIMPSE_TARGET")] = None
    """HOST:PORT or URL of a server, or of its gateway, instead of --host and --port."""
    api_key: Annotated[str | None, Parameter(env_var="GLIMPSE_API_KEY")] = None
    """An API key, or a JWT. The variable keeps it out of the list of processes."""
    tls: Annotated[bool, Parameter(negative="", env_var="GLIMPSE_TLS")] = False
    """Connect with TLS, to a server whose certificate a public CA signed."""
    tls_ca: Annotated[str | None, Parameter(env_var="GLIMPSE_TLS_CA")] = None
    """Connect with TLS; PEM file of the CA that signed the server's certificate."""
    tls_certificate: str | None = None
    """PEM file of your certificate, for servers that require one."""
    tls_key: str | None = None
    """PEM file of your certificate's private key."""

    @property
    def address(self) -> str:
        """HOST:PORT, or another target of gRPC's. Raises UsageError."""
        return self._parsed()[0]

    def open(self) -> Client:
        """Returns a client, which connects when it is first used. Raises UsageError, ValueError and OSError."""
        target, tls = self._secured()
        return Client(target, tls=tls, api_key=self.api_key, max_retries=0, wait_until_ready=_StageLines().show)

    def open_channel(self) -> grpc.aio.Channel:
        """Returns a channel for calls without a method of the client, which need `metadata`. Raises as `open` does."""
        target, tls = self._secured()
        return open_channel(grpc.aio.insecure_channel, grpc.aio.secure_channel, target, None, tls, max_retries=0)

    @property
    def metadata(self) -> Any:
        """What each call says of who calls."""
        return call_arguments({}, None, self.api_key)["metadata"]

    def _secured(self) -> tuple[str, Tls | None]:
        target, is_secure = self._parsed()
        if is_secure or self.tls or self.tls_ca or self.tls_certificate or self.tls_key:
            return target, Tls(ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key)
        return target, None

    def _parsed(self) -> tuple[str, bool]:
        if self.target is None:
            return address(local_host(self.host), self.port), False
        return parse_target(self.target)


def parse_target(target: str) -> tuple[str, bool]:
    """Returns gRPC's target of HOST:PORT or a URL, whose path does not count, and whether a URL asks for TLS.

    Raises:
        UsageError: there is no port, or no host.
    """
    scheme, separator, rest = target.partition("://")
    if separator and scheme in _SCHEMES:
        authority = rest.partition("/")[0]
        has_port = ":" in authority.rpartition("]")[2]
        if authority:
            return authority if has_port else f"{authority}:{_SCHEMES[scheme]}", scheme.endswith("s")
    elif ":" in target.rpartition("]")[2]:
        return target, False
    raise UsageError(f"'--target': expected HOST:PORT or a URL, got {target!r}")


_FLAGS = {
    "generation.temperature": "--temperature",
    "generation.max_completion_tokens": "--max-tokens",
    "response_format": "--json",
    "model": "--model",
}
"""Flags, by the fields of requests that they set."""


def in_words(error: GlimpseError, conversation: ChatHistory) -> str:
    """Returns what to tell about a question that failed: its file or flag, rather than the field of its request."""
    field = error.field or ""
    text = error.message.removeprefix(f"'{field}': ")
    if (attachment := conversation.attachment(field)) is not None:
        return f"{attachment.name}: {text}"
    flag = next((flag for name, flag in _FLAGS.items() if field == name or field.startswith(f"{name}.")), None)
    return error.message if flag is None else f"'{flag}': {text}"


class _StageLines:
    """Tells on standard error what the server that is waited for does."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, message: str) -> None:
        if message != self._last:
            print(message, file=sys.stderr, flush=True)
        self._last = message
