"""The file of API keys holds hashes, and a line that cannot be used is refused without being repeated."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from glimpse.identity.access import Access
from glimpse.identity.api_keys import KeyOwner, key_hash, key_line, new_key, parse_keys
from glimpse.identity.errors import IdentityConfigError, UnauthenticatedError
from glimpse.identity.watched_file import WatchedFile
from glimpse.server.cli import key as command
from glimpse.server.services.load_reports import ORCA_METHOD

CHAT = "/glimpse.v1.ChatService/CountTokens"
HASH = key_hash("secret")


def access_of(path: Path, *lines: str) -> tuple[Access, WatchedFile[Mapping[str, KeyOwner]]]:
    path.write_text("\n".join(lines))
    file = WatchedFile(path, parse_keys)
    return Access(keys=file), file


def test_lines_name_callers_and_hold_no_keys():
    acme, admin = new_key(), new_key()
    lines = [
        key_line(acme, KeyOwner(tenant="acme")),
        "",
        "# ours",
        key_line(admin, KeyOwner(tenant="ops", is_admin=True)),
    ]
    callers = parse_keys("\n".join(lines), "keys")
    assert callers[key_hash(acme)] == KeyOwner(tenant="acme")
    assert callers[key_hash(admin)] == KeyOwner(tenant="ops", is_admin=True)
    assert acme not in "".join(lines)
    assert acme != admin


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("glimpse-plaintext acme", "line 1: expected sha256:"),
        (f"\n{HASH}", "line 2: expected a tenant's name"),
        (f"{HASH} acme root", "line 1: expected nothing or 'admin'"),
        (f"{HASH} acme\n{HASH} other", "line 2: expected each key once"),
    ],
)
def test_unusable_line_is_refused_by_its_number(text: str, expected: str):
    with pytest.raises(IdentityConfigError) as caught:
        parse_keys(text, "keys")
    assert expected in str(caught.value)
    assert "plaintext" not in str(caught.value)


@pytest.mark.parametrize(
    "header",
    [("authorization", "Bearer secret"), ("authorization", "bearer  secret"), ("x-api-key", "secret")],
)
def test_key_gives_the_tenant(tmp_path: Path, header: tuple[str, str]):
    access, _ = access_of(tmp_path / "keys", f"{HASH} acme")
    assert access.authenticate(CHAT, [header]).tenant.name == "acme"


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ([], "has no credential"),
        ([("authorization", "Bearer ")], "has no credential"),
        ([("authorization", "Bearer other")], "is not valid"),
        ([("authorization", f"Bearer {HASH}")], "is not valid"),
        ([("x-glimpse-tenant", "acme")], "has no credential"),
    ],
)
def test_nothing_else_gives_one(tmp_path: Path, metadata: list[tuple[str, str | bytes]], what: str):
    access, _ = access_of(tmp_path / "keys", f"{HASH} acme")
    with pytest.raises(UnauthenticatedError) as caught:
        access.authenticate(CHAT, metadata)
    assert what in caught.value.message
    assert "secret" not in caught.value.message


def test_gateway_names_the_tenant_where_it_is_trusted(tmp_path: Path):
    access = Access(is_gateway=lambda peer: peer == "ipv4:127.0.0.1:1")
    named = [("x-glimpse-tenant", "spiffe://example.org/acme"), ("authorization", "Bearer a.b.c")]
    assert access.authenticate(CHAT, named, "ipv4:127.0.0.1:1").tenant.name == "spiffe://example.org/acme"
    for metadata, peer in ((named, "ipv4:192.0.2.7:1"), ([("x-glimpse-tenant", "a b")], "ipv4:127.0.0.1:1")):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(CHAT, metadata, peer)


def test_load_balancers_read_load_reports_for_themselves_alone(tmp_path: Path):
    (tmp_path / "keys").write_text(f"{HASH} acme")
    access = Access(keys=WatchedFile(tmp_path / "keys", parse_keys), is_proxy=lambda peer: peer == "proxy")
    reports = f"/{ORCA_METHOD.rpartition('.')[0]}/{ORCA_METHOD.rpartition('.')[2]}"
    assert access.authenticate(reports, [], "proxy").tenant.name == ""
    passed_on = [("x-glimpse-client-address", "192.0.2.7")]
    for method, metadata, peer in ((reports, passed_on, "proxy"), (reports, [], "other"), (CHAT, [], "proxy")):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(method, metadata, peer)


def test_certificate_names_the_tenant_unless_the_request_is_passed_on():
    access = Access(by_certificate=True, is_proxy=lambda _: True)
    connection = {"peer_dns": [b"acme.example"], "peer_uri": [b"spiffe://example.org/acme"]}
    assert access.authenticate(CHAT, [], "", connection).tenant.name == "spiffe://example.org/acme"
    assert access.authenticate(CHAT, [], "", {"peer_dns": [b"acme.example"]}).tenant.name == "acme.example"
    passed_on = [("x-glimpse-client-address", "192.0.2.7")]
    for metadata, names in ((passed_on, connection), ([], {}), ([], {"peer_dns": [b"a b"]})):
        with pytest.raises(UnauthenticatedError):
            access.authenticate(CHAT, metadata, "", names)


def test_file_is_read_again_and_a_broken_one_is_not_taken_over(tmp_path: Path):
    access, file = access_of(tmp_path / "keys", f"{HASH} acme")
    (tmp_path / "keys").write_text("broken")
    file.refresh()
    assert access.authenticate(CHAT, [("x-api-key", "secret")]).tenant.name == "acme"
    (tmp_path / "keys").write_text(f"{key_hash('new')} acme")
    file.refresh()
    assert access.authenticate(CHAT, [("x-api-key", "new")]).tenant.name == "acme"
    with pytest.raises(UnauthenticatedError):
        access.authenticate(CHAT, [("x-api-key", "secret")])


def test_file_that_vanishes_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    access, file = access_of(tmp_path / "keys", f"{HASH} acme")
    for _ in range(2):
        (tmp_path / "keys").rename(tmp_path / "elsewhere")
        for _ in range(3):
            file.refresh()
        assert access.authenticate(CHAT, [("x-api-key", "secret")]).tenant.name == "acme"
        (tmp_path / "elsewhere").rename(tmp_path / "keys")
        file.refresh()
    assert caplog.text.count("what was read before stays in effect") == 2


def test_missing_file_is_an_error_at_the_start(tmp_path: Path):
    with pytest.raises(IdentityConfigError, match="expected a readable file"):
        WatchedFile(tmp_path / "none", parse_keys)


def test_command_writes_the_line_and_shows_the_key_apart(capsys: pytest.CaptureFixture[str]):
    command.key("acme", admin=True)
    written = capsys.readouterr()
    secret = written.err.splitlines()[-1]
    assert written.out == key_line(secret, KeyOwner(tenant="acme", is_admin=True)) + "\n"
    assert secret not in written.out


def test_command_refuses_a_name_with_spaces():
    with pytest.raises(SystemExit, match="'tenant': expected"):
        command.key("a b")
