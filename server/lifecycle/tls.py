"""TLS of the gRPC port: the server's certificate and the CA of its clients, read again when the files change."""

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import grpc

from glimpse.server.settings import ListenSettings

_logger = logging.getLogger(__name__)

_SWAP_SECONDS = 0.5
"""Pause before gRPC gets new certificates.

gRPC's core replaces its certificates under a lock, but begins handshakes with them outside of it
(`add_handshakers` in ssl_security_connector.cc): one that has just looked for new certificates may use freed memory,
and under load does. The lock is held during the pause: no handshake starts, and those that have looked have long begun.
"""

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""The inode, size and time of change of each file; None for one that is missing."""


class TlsError(Exception):
    """A certificate, key or CA cannot be used. The message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files for TLS."""

    certificate: Path
    """The server's certificate, followed by those between it and its CA."""
    key: Path
    """The certificate's private key."""
    client_ca: Path | None
    """The CA that signs client certificates. If set, clients without a certificate are refused."""

    def stamp(self) -> _Stamp:
        """Returns what differs after a change. Follows links: Kubernetes replaces files by swapping one."""
        return tuple(_stamp(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


def tls_files(settings: ListenSettings) -> TlsFiles | None:
    """Returns the files that the settings name; None for plain text."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return TlsFiles(certificate=settings.tls_certificate, key=settings.tls_key, client_ca=settings.tls_client_ca)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Returns credentials that follow the files. Raises TlsError."""
    certificates = _Certificates(files)
    return grpc.dynamic_ssl_server_credentials(
        certificates.first,
        certificates.changed,  # pyright: ignore[reportArgumentType] - the stubs lack None, which means no change
        require_client_authentication=files.client_ca is not None,
    )


class _Certificates:
    """The certificates in use. gRPC asks for changes before each handshake, on threads of its own, one at a time."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = files.stamp()
        self.first = _read(files)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns new certificates; None if the files are as they were, or cannot be used, which is logged once."""
        if (stamp := self._files.stamp()) == self._seen:
            return None
        try:
            certificates = _read(self._files)
        except TlsError as error:
            _logger.warning("the TLS certificate is not replaced: %s", error)
            self._seen = stamp
            return None
        if self._files.stamp() != stamp:
            return None  # they are being written; the next handshake reads them again
        self._seen = stamp
        time.sleep(_SWAP_SECONDS)
        _logger.info("the TLS certificate was replaced by the one now in %s", self._files.certificate)
        return certificates


def _read(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    """Reads and checks the files. Raises TlsError."""
    certificate = _certificates(files.certificate, "--tls-certificate")
    client_ca = None if files.client_ca is None else _certificates(files.client_ca, "--tls-client-ca")
    try:
        # An empty password: OpenSSL would ask on the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password="")
        key = files.key.read_bytes()
    except OSError as error:
        reason = error.strerror or "it does not belong to the certificate"
        raise TlsError(
            f"'--tls-key': expected a PEM file with the unencrypted private key of {files.certificate}, "
            f"got {str(files.key)!r}: {_reason(error, reason)}"
        ) from error
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)


def _certificates(path: Path, flag: str) -> bytes:
    try:
        text = path.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text.decode("ascii"))
    except (OSError, ValueError) as error:
        raise TlsError(
            f"'{flag}': expected a PEM file with certificates, got {str(path)!r}: {_reason(error, str(error))}"
        ) from error
    return text


def _reason(error: Exception, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return otherwise


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
