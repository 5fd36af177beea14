"""Flags for TLS of a listener: which belong together, and what their files must contain."""

from pathlib import Path

import pytest

from glimpse.identity.errors import IdentityConfigError
from glimpse.identity.tls import ListenerTls
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


ENCRYPTED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhGAwG7EGFODQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEEC1F7XAQqBTQZHHU52uVd8EQPXZ
xEO4aXeXSnbEboCjw7ziUQ4ZU0/jxOPNAm0WrWwSsJkY5mhN8qbM4ETmQDLDx6nY
GCPAtFetLUzaCwOZQ+8=
-----END ENCRYPTED PRIVATE KEY-----
"""
