"""Flags for TLS of a listener: which belong together, and what their files must contain."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from glimpse.identity.authentication import AuthenticationOptions
from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls
from glimpse.identity.tokens import build_verifier
from tests.paths import ROOT

FILES = ROOT / "tests" / "gateway" / "certificates"
CERTIFICATE, KEY, CA = FILES / "gateway.pem", FILES / "gateway.key", FILES / "ca.pem"


@pytest.mark.parametrize("client_ca", [None, CA])
def test_accepts_a_certificate_with_its_key(client_ca: Path | None) -> None:
    ListenerTls(tls_certificate=CERTIFICATE, tls_key=KEY, tls_client_ca=client_ca).check()


@pytest.mark.parametrize(
    ("certificate", "key", "client_ca", "message"),
    [
        (CERTIFICATE, None, None, "'--tls-certificate' and '--tls-key': expected both or none"),
        (None, KEY, None, "'--tls-certificate' and '--tls-key': expected both or none"),
        (None, None, CA, "'--tls-client-ca': expected together with"),
        (FILES / "none.pem", KEY, None, "'--tls-certificate': expected a file that exists, got '.*none.pem'"),
        (CERTIFICATE, FILES / "none.key", None, "'--tls-key': expected a file that exists"),
        (KEY, KEY, None, "'--tls-certificate' and '--tls-key': expected PEM files .*gateway.key"),
        (CERTIFICATE, FILES / "client.key", None, "unencrypted private key, got .*client.key': key values mismatch"),
        (CERTIFICATE, KEY, KEY, "'--tls-client-ca': expected a PEM file with certificates"),
        (CERTIFICATE, KEY, FILES, "'--tls-client-ca': expected a file"),
    ],
)
def test_refuses_files_that_cannot_be_used(
    certificate: Path | None, key: Path | None, client_ca: Path | None, message: str
) -> None:
    with pytest.raises(IdentityConfigError, match=message):
        ListenerTls(tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca).check()


def test_refuses_an_encrypted_key_without_asking_for_its_password(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(ENCRYPTED_KEY)
    with pytest.raises(IdentityConfigError, match="unencrypted private key"):
        ListenerTls(tls_certificate=CERTIFICATE, tls_key=tmp_path / "key").check()


@pytest.mark.parametrize(
    ("begin", "end", "dates"),
    [(-2, -1, "expired on {1}"), (1, 2, "is valid from {0}"), (-1, 1, None)],
    ids=["expired", "not yet valid", "valid"],
)
def test_warns_of_certificates_that_are_not_valid_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begin: int, end: int, dates: str | None
) -> None:
    validity = [datetime.now(UTC) + timedelta(days=days) for days in (begin, end)]
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    write_certificate(certificate, key, *validity)
    ListenerTls(tls_certificate=certificate, tls_key=key, tls_client_ca=certificate).check()
    build_verifier(AuthenticationOptions(jwt_jwks="https://issuer.example/jwks", jwt_jwks_ca=certificate))
    expected = [] if dates is None else [dates.format(*(f"{each:%Y-%m-%d %H:%M}" for each in validity))]
    assert caplog.messages == [
        f"'{flag}': the certificate of 'CN=example' in '{certificate}' {each} UTC; connections that need it fail"
        for flag in ("--tls-certificate", "--tls-client-ca", "--jwt-jwks-ca")
        for each in expected
    ]


def test_warns_of_one_authority_among_several(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin, end = datetime(2001, 1, 1, tzinfo=UTC), datetime(2002, 2, 2, tzinfo=UTC)
    write_certificate(bundle := tmp_path / "ca.pem", tmp_path / "key", begin, end)
    bundle.write_bytes(CA.read_bytes() + bundle.read_bytes())
    ListenerTls(tls_certificate=CERTIFICATE, tls_key=KEY, tls_client_ca=bundle).check()
    assert [message.partition("' in '")[0] for message in caplog.messages] == [
        "'--tls-client-ca': the certificate of 'CN=example"
    ]


def write_certificate(path: Path, key_path: Path, begin: datetime, end: datetime) -> None:
    """Writes a self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "example")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, end)
    path.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


ENCRYPTED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhGAwG7EGFODQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEEC1F7XAQqBTQZHHU52uVd8EQPXZ
xEO4aXeXSnbEboCjw7ziUQ4ZU0/jxOPNAm0WrWwSsJkY5mhN8qbM4ETmQDLDx6nY
GCPAtFetLUzaCwOZQ+8=
-----END ENCRYPTED PRIVATE KEY-----
"""
