"""TLS of the gateway, to clients and to servers: flags for the latter, and what Envoy's configuration says of both.

Envoy gets certificates as secrets in files of their own, because it reads only those again when they change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from glimpse.gateway.address import is_ip
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls, check_authorities, check_pair

_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    """TLS to servers. Plain text without `upstream_ca`."""

    upstream_ca: Path | None = None
    """PEM file of the CA that signs the servers' certificates. Turns TLS to them on. Default: plain text."""
    upstream_certificate: Path | None = None
    """PEM file of the gateway's certificate, for servers that require one (mutual TLS)."""
    upstream_key: Path | None = None
    """PEM file of that certificate's private key."""
    upstream_server_name: Annotated[str | None, Parameter(show_default=False)] = None
    """Name that the servers' certificates have. Default: the host of --upstream."""

    def check(self) -> None:
        """Raises IdentityConfigError where a flag is missing or a file cannot be used; the message is for the user."""
        files = {"--upstream-certificate": self.upstream_certificate, "--upstream-key": self.upstream_key}
        flags = {**files, "--upstream-server-name": self.upstream_server_name}
        if self.upstream_ca is None:
            if (flag := next((flag for flag, value in flags.items() if value is not None), None)) is not None:
                raise IdentityConfigError(f"'{flag}': expected together with --upstream-ca")
            return
        check_authorities("--upstream-ca", self.upstream_ca)
        check_pair(files)


NO_UPSTREAM_TLS = UpstreamTls()


def listener_socket(tls: ListenerTls, folder: Path) -> dict[str, Any] | None:
    """Returns Envoy's `transport_socket` of a listener, and writes its secrets to the folder; None for plain text."""
    if tls.tls_certificate is None or tls.tls_key is None:
        return None
    common: dict[str, Any] = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificate_sds_secret_configs": [_certificate("listener", tls.tls_certificate, tls.tls_key, folder)],
    }
    if tls.tls_client_ca is not None:
        common["validation_context_sds_secret_config"] = _authority("clients", tls.tls_client_ca, folder)
    return _socket(
        "DownstreamTlsContext", require_client_certificate=tls.tls_client_ca is not None, common_tls_context=common
    )


def upstream_socket(tls: UpstreamTls, hosts: Sequence[str], folder: Path) -> dict[str, Any] | None:
    """Returns the `transport_socket` of connections to these hosts, and writes its secrets; None for plain text."""
    if tls.upstream_ca is None:
        return None
    names = hosts if tls.upstream_server_name is None else [tls.upstream_server_name]
    common: dict[str, Any] = {
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "combined_validation_context": {
            "default_validation_context": san_matchers(names),
            "validation_context_sds_secret_config": _authority("servers", tls.upstream_ca, folder),
        },
    }
    if tls.upstream_certificate is not None and tls.upstream_key is not None:
        secret = _certificate("upstream", tls.upstream_certificate, tls.upstream_key, folder)
        common["tls_certificate_sds_secret_configs"] = [secret]
    return named_socket(names[0], common)


def named_socket(host: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `transport_socket` of connections to a host. TLS has no server names that are addresses."""
    indication = {} if is_ip(host) else {"sni": host}
    return _socket("UpstreamTlsContext", common_tls_context=common, **indication)


def san_matchers(names: Sequence[str]) -> dict[str, Any]:
    """Returns the check that a certificate has one of the names."""
    matchers = [{"san_type": "IP_ADDRESS" if is_ip(name) else "DNS", "matcher": {"exact": name}} for name in names]
    return {"match_typed_subject_alt_names": matchers}


def _socket(context: str, **options: Any) -> dict[str, Any]:
    config = {"@type": f"{_TYPES}.{context}", **options}
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _certificate(name: str, certificate: Path, key: Path, folder: Path) -> dict[str, Any]:
    files = {"certificate_chain": _file(certificate), "private_key": _file(key)}
    return _secret(name, {"tls_certificate": files | _watched(certificate)}, folder)


def _authority(name: str, ca: Path, folder: Path) -> dict[str, Any]:
    return _secret(name, {"validation_context": {"trusted_ca": _file(ca)} | _watched(ca)}, folder)


def _file(path: Path) -> dict[str, Any]:
    return {"filename": str(path.absolute())}


def _watched(path: Path) -> dict[str, Any]:
    """Envoy looks again when a file or link is moved into this folder."""
    return {"watched_directory": {"path": str(path.absolute().parent)}}


def _secret(name: str, secret: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Writes a secret's file and returns the configuration that refers to it."""
    path = folder / f"{name}.secret.json"
    resource = {"@type": f"{_TYPES}.Secret", "name": name, **secret}
    path.write_text(json.dumps({"resources": [resource]}, indent=1), encoding="utf-8")
    return {"name": name, "sds_config": {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}}
