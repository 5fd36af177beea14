"""TLS of a listener: flags of the server and of a gateway, and the checks of the files that they name."""

import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclopts import Parameter

from glimpse.identity.errors import IdentityConfigError

_logger = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS to clients. Plain text without `tls_certificate`."""

    tls_certificate: Path | None = None
    """PEM file of the certificate for clients. Turns TLS on; read again when it changes. Default: plain text."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of the CA that signs client certificates, which are then required (mutual TLS)."""

    def check(self) -> None:
        """Raises IdentityConfigError where a flag is missing or a file cannot be used."""
        if self.tls_certificate is None and self.tls_client_ca is not None:
            raise IdentityConfigError("'--tls-client-ca': expected together with --tls-certificate and --tls-key")
        check_pair({"--tls-certificate": self.tls_certificate, "--tls-key": self.tls_key})
        if self.tls_client_ca is not None:
            check_authorities("--tls-client-ca", self.tls_client_ca)


PLAIN_TEXT = ListenerTls()


def check_pair(flags: Mapping[str, Path | None]) -> None:
    """Raises IdentityConfigError if the second flag's file does not have the key of the first one's certificate."""
    (flag, certificate), (key_flag, key) = flags.items()
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise IdentityConfigError(f"'{flag}' and '{key_flag}': expected both or none, got one")
    for each, path in ((flag, certificate), (key_flag, key)):
        _check_file(each, path)
    try:
        # An empty password: OpenSSL would ask on the terminal for that of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise IdentityConfigError(
            f"'{flag}' and '{key_flag}': expected PEM files of a certificate and its unencrypted private key, "
            f"got '{certificate}' and '{key}': {_reason(error)}"
        ) from error
    _warn_of_dates(flag, certificate)


def check_authorities(flag: str, path: Path) -> None:
    """Raises IdentityConfigError if the flag's file has no certificates."""
    _check_file(flag, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except OSError as error:
        reason = f"expected a PEM file with certificates, got '{path}': {_reason(error)}"
        raise IdentityConfigError(f"'{flag}': {reason}") from error
    _warn_of_dates(flag, path)


def _warn_of_dates(flag: str, path: Path) -> None:
    """Logs the certificates of a file that are not valid now. It may be right: this machine's clock may be wrong."""
    from cryptography import x509  # noqa: PLC0415 - only TLS needs it

    now = datetime.now(UTC)
    with suppress(ValueError):  # cryptography reads less than OpenSSL, which has accepted the file
        for each in x509.load_pem_x509_certificates(path.read_bytes()):
            begin, end = each.not_valid_before_utc, each.not_valid_after_utc
            if not begin <= now <= end:
                dates = f"expired on {end:%Y-%m-%d %H:%M}" if now > end else f"is valid from {begin:%Y-%m-%d %H:%M}"
                found = f"the certificate of '{each.subject.rfc4514_string()}' in '{path}'"
                _logger.warning("'%s': %s %s UTC; connections that need it fail", flag, found, dates)


def _check_file(flag: str, path: Path) -> None:
    if not path.is_file():
        raise IdentityConfigError(f"'{flag}': expected a file that exists, got '{path}'")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or "it cannot be read"
