"""TLS of a client's connection."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Whom the client trusts, and with mutual TLS who it is. All files are PEM and are read when the client is made."""

    ca: str | Path | None = None
    """File with the CA that signed the server's certificate. Default: the public ones that gRPC brings."""
    certificate: str | Path | None = None
    """File with the client's certificate, for servers that require one."""
    key: str | Path | None = None
    """File with the certificate's private key."""
    server_name: str | None = None
    """Name that the server's certificate has. Default: the target's host."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns gRPC's credentials. Raises ValueError where the certificate or its key is missing, and OSError."""
        if (self.certificate is None) != (self.key is None):
            name = "certificate" if self.certificate is None else "key"
            raise ValueError(f"'tls.{name}': expected a file, got None; a certificate and its key go together")
        ca, key, certificate = (
            None if path is None else Path(path).read_bytes() for path in (self.ca, self.key, self.certificate)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def channel_options(self) -> list[tuple[str, str]]:
        """Returns the options of the channel that replace the name to check."""
        return [] if self.server_name is None else [("grpc.ssl_target_name_override", self.server_name)]
