"""TLS at the gateway's port: Envoy's words for it, and what speaks against the files. Reads none of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONTEXT = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Who the gateway says it is, and from whom it wants to know the same."""

    certificate: Path
    """PEM: the gateway's certificate, and those between it and a root."""
    key: Path
    """PEM: the certificate's private key."""
    client_ca: Path | None = None
    """PEM: who signs clients' certificates. Without it clients need none; with it those without one are refused."""


def parse_tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    """What three flags say together; None where there is to be no TLS.

    Raises:
        ValueError: one is missing, or names no file; in words for the user.
    """
    given = {"--tls-certificate": certificate, "--tls-key": key, "--tls-client-ca": client_ca}
    for flag, path in given.items():
        if path is not None and not path.is_file():
            raise ValueError(f"{flag}: there is no file {path}")
    if certificate is not None and key is not None:
        absolute = None if client_ca is None else client_ca.absolute()
        return Tls(certificate=certificate.absolute(), key=key.absolute(), client_ca=absolute)
    if (flag := next((flag for flag, path in given.items() if path is not None), None)) is not None:
        raise ValueError(f"{flag} needs --tls-certificate and --tls-key")
    return None


def transport_socket(tls: Tls | None) -> dict[str, Any] | None:
    """Envoy's `transport_socket` of a listener."""
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
