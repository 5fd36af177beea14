"""TLS of the gRPC port: the server's certificate and the CA of its clients, read again when the files change."""

import logging
import time
from pathlib import Path

import grpc

from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls

_logger = logging.getLogger(__name__)

_SWAP_SECONDS = 0.5
"""Pause before gRPC gets new certificates.

gRPC's core replaces its certificates under a lock, but begins handshakes with them outside of it
(`add_handshakers` in ssl_security_connector.cc): one that has just looked for new certificates may use freed memory,
and under load does. The lock is held during the pause: no handshake starts, and those that have looked have long begun.
"""

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""The inode, size and time of change of each file; None for one that is missing."""


def server_credentials(tls: ListenerTls) -> grpc.ServerCredentials | None:
    """Returns credentials that follow the files; None for plain text. Raises IdentityConfigError."""
    if tls.tls_certificate is None or tls.tls_key is None:
        tls.check()
        return None
    certificates = _Certificates(tls, tls.tls_certificate, tls.tls_key)
    return grpc.dynamic_ssl_server_credentials(
        certificates.first,
        certificates.changed,  # pyright: ignore[reportArgumentType] - the stubs lack None, which means no change
        require_client_authentication=tls.tls_client_ca is not None,
    )


class _Certificates:
    """The certificates in use. gRPC asks for changes before each handshake, on threads of its own, one at a time."""

    def __init__(self, tls: ListenerTls, certificate: Path, key: Path) -> None:
        self._tls = tls
        self._certificate = certificate
        self._key = key
        self._seen = self._stamp()
        self.first = self._read()

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns new certificates; None if the files are as they were, or cannot be used, which is logged once."""
        if (stamp := self._stamp()) == self._seen:
            return None
        try:
            certificates = self._read()
        except (IdentityConfigError, OSError) as error:
            _logger.warning("the TLS certificate is not replaced: %s", error)
            self._seen = stamp
            return None
        if self._stamp() != stamp:
            return None  # they are being written; the next handshake reads them again
        self._seen = stamp
        time.sleep(_SWAP_SECONDS)
        _logger.info("the TLS certificate was replaced by the one now in %s", self._certificate)
        return certificates

    def _stamp(self) -> _Stamp:
        """Returns what differs after a change. Follows links: Kubernetes replaces files by swapping one."""
        return tuple(_stamp(path) for path in (self._certificate, self._key, self._tls.tls_client_ca) if path)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        self._tls.check()
        client_ca = None if self._tls.tls_client_ca is None else self._tls.tls_client_ca.read_bytes()
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], client_ca)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
