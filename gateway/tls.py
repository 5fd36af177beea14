"""TLS of the gateway's listener: checks the flags and builds Envoy's configuration. Does not read the files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The gateway's certificate, and the CA of its clients' certificates."""

    certificate: Path
    """PEM: the gateway's certificate chain."""
    key: Path
    """PEM: the certificate's private key."""
    client_ca: Path | None = None
    """PEM: the CA that signs client certificates. If set, clients without a certificate are refused."""


def parse_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """Checks three flags together; returns None for plain text.

    Raises:
        ValueError: a flag is missing or names no file; the message is for the user.
    """
    flags = {"--tls-certificate": certificate, "--tls-key": key, "--tls-client-ca": client_ca}
    for flag, path in flags.items():
        if path is not None and not path.is_file():
            raise ValueError(f"'{flag}': expected a file, got '{path}', which does not exist")
    if certificate is not None and key is not None:
        absolute = None if client_ca is None else client_ca.absolute()
        return Tls(certificate=certificate.absolute(), key=key.absolute(), client_ca=absolute)
    if (flag := next((flag for flag, path in flags.items() if path is not None), None)) is not None:
        raise ValueError(f"'{flag}' requires --tls-certificate and --tls-key")
    return None


def transport_socket(tls: Tls | None) -> dict[str, Any] | None:
    """Returns Envoy's `transport_socket` of a listener; None for plain text."""
    if tls is None:
        return None
    files = {"certificate_chain": {"filename": str(tls.certificate)}, "private_key": {"filename": str(tls.key)}}
    common: dict[str, Any] = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificates": [files],
    }
    if tls.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"filename": str(tls.client_ca)}}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": _CONTEXT,
            "require_client_certificate": tls.client_ca is not None,
            "common_tls_context": common,
        },
    }
