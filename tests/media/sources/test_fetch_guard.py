"""SSRF protection: refused hosts in any spelling, after DNS lookups and redirects."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import UrlSource, parse_url_text
from tests.media.fetching import LOOPBACK_ONLY, DnsResolver, get, refusal
from tests.media.web import Web, redirect, respond, serve

DEFAULTS_ON_ANY_PORT = FetchPolicy(allowed_ports=None)


async def test_sends_no_cookies_and_ignores_proxies_and_netrc(
    web: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    web.answers["/a"] = respond(b"", status=302, headers={"Location": "/cat.png", "Set-Cookie": "a=b"})
    assert await get(web.url("/a")) == b"cat"
    heads = "".join(web.requests).lower()
    assert "cookie" not in heads
    assert "authorization" not in heads
    assert "referer" not in heads


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.0.0.1",
        "0x7f.1",
        "0",
        "0.0.0.0",
        "127.0.0.1.",
        "127.0.0.1..",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::1]",
        "[::1%251]",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "%31%32%37.0.0.1",
    ],
)
async def test_refuses_every_spelling_of_loopback(web: Web, host: str) -> None:
    error = await refusal(web.url("/cat.png", host), DEFAULTS_ON_ANY_PORT)
    # Some resolvers do not know "localhost.", which then fails like any unknown host.
    assert error.code in (MediaErrorCode.URL_REFUSED, MediaErrorCode.INVALID_SOURCE, MediaErrorCode.FETCH_FAILED)
    assert web.requests == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "[fd00::1]"])
async def test_refusal_of_private_addresses_has_one_message(host: str) -> None:
    error = await refusal(f"http://{host}/cat.png", FetchPolicy())
    assert error.code == MediaErrorCode.URL_REFUSED
    assert error.message == "the URL's host is not a public address"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://me@example.com/", "user name"),
        ("http://me:secret@example.com/", "user name"),
        ("http://:secret@example.com/", "user name"),
        ("http://example.com:22/", "port 22"),
        ("http://example.com:0/", "port 0"),
        ("https://example.com:6379/", "port 6379"),
        ("ftp://example.com/", "expected an http or https URL"),
        ("file:///etc/passwd", "expected an http or https URL"),
        ("/cat.png", "expected an http or https URL"),
    ],
)
async def test_refuses_urls_before_connecting(url: str, complaint: str) -> None:
    error = await refusal(url, FetchPolicy())
    assert error.code == MediaErrorCode.URL_REFUSED
    assert complaint in error.message
    assert "secret" not in error.message


async def test_user_info_is_not_read_as_the_host(web: Web) -> None:
    error = await refusal(f"http://example.com@127.0.0.1:{web.port}/cat.png")
    assert error.code == MediaErrorCode.URL_REFUSED
    with pytest.raises(MediaError):
        parse_url_text(f"http://example.com\\@127.0.0.1:{web.port}/cat.png")
    source = parse_url_text(f"http://127.0.0.1:{web.port}/cat.png#@example.com/")
    assert isinstance(source, UrlSource)
    assert source.url.host == "127.0.0.1"
    assert web.requests == []


async def test_fetching_can_be_disabled(web: Web) -> None:
    error = await refusal(web.url("/cat.png"), replace(LOOPBACK_ONLY, enabled=False))
    assert error.code == MediaErrorCode.URL_REFUSED
    assert "does not fetch media" in error.message
    assert web.requests == []


async def test_fetches_only_from_allowed_domains(web: Web) -> None:
    policy = replace(LOOPBACK_ONLY, allowed_domains=frozenset({"images.example"}))
    names = DnsResolver(["127.0.0.1"])
    assert await get(web.url("/cat.png", "images.example"), policy, resolver=names) == b"cat"
    assert await get(web.url("/cat.png", "IMAGES.example."), policy, resolver=names) == b"cat"
    web.answers["/away"] = redirect(web.url("/cat.png", "other.example"))
    for url in (
        web.url("/cat.png", "other.example"),
        web.url("/cat.png", "images.example.evil.example"),
        web.url("/cat.png", "evil.images.example"),
        web.url("/away", "images.example"),
    ):
        error = await refusal(url, policy, resolver=names)
        assert error.code == MediaErrorCode.URL_REFUSED
        assert "domain" in error.message


async def test_allowed_domain_does_not_allow_private_addresses(web: Web) -> None:
    policy = FetchPolicy(allowed_domains=frozenset({"images.example"}), allowed_ports=None)
    error = await refusal(web.url("/cat.png", "images.example"), policy, resolver=DnsResolver(["127.0.0.1"]))
    assert error.message == "the URL's host is not a public address"


async def test_slow_dns_lookups_block_no_other_lookups_and_threads(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    released, look_up = threading.Event(), socket.getaddrinfo

    def never_answers(name: str, *arguments: Any, **options: Any) -> object:
        if name == "quick.example":
            return look_up("127.0.0.1", *arguments, **options)
        assert released.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", never_answers)
    slow = [asyncio.create_task(refusal(f"http://slow{index}.example/")) for index in range(40)]
    await asyncio.sleep(0)
    try:
        # Other work in the default thread pool, such as tokenization.
        assert await asyncio.gather(*(asyncio.to_thread(str, index) for index in range(40)))
        assert await get(web.url("/cat.png", "quick.example")) == b"cat"
        assert not any(fetch.done() for fetch in slow)
    finally:
        released.set()
    assert {error.code for error in await asyncio.gather(*slow)} == {MediaErrorCode.FETCH_FAILED}


async def test_connects_to_the_checked_address_without_a_second_lookup(web: Web) -> None:
    names = DnsResolver(["127.0.0.1"], ["127.0.0.2"])
    assert await get(web.url("/cat.png", "rebinding.example"), resolver=names) == b"cat"
    assert names.num_lookups == 1


async def test_rebound_host_is_checked_again_at_each_connection(web: Web) -> None:
    web.answers["/again"] = redirect("/cat.png")
    names = DnsResolver(["127.0.0.1"], ["127.0.0.2"])  # allowed at the first lookup, not at the second
    error = await refusal(web.url("/again", "rebinding.example"), resolver=names)
    assert error.code == MediaErrorCode.URL_REFUSED
    assert len(web.requests) == 1


async def test_connects_only_to_the_allowed_addresses_of_a_host(web: Web) -> None:
    assert (
        await get(web.url("/cat.png", "a.example"), resolver=DnsResolver(["127.0.0.2", "::1", "127.0.0.1"])) == b"cat"
    )
    error = await refusal(web.url("/cat.png", "a.example"), resolver=DnsResolver(["127.0.0.2", "::1", "10.0.0.1"]))
    assert error.code == MediaErrorCode.URL_REFUSED


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://127.0.0.2:{port}/cat.png", MediaErrorCode.URL_REFUSED),
        ("//localhost:{port}/cat.png", MediaErrorCode.URL_REFUSED),
        ("http://[::1]:{port}/cat.png", MediaErrorCode.URL_REFUSED),
        ("http://169.254.169.254/latest/meta-data/", MediaErrorCode.URL_REFUSED),
        ("http://me:secret@127.0.0.1:{port}/cat.png", MediaErrorCode.URL_REFUSED),
        ("file:///etc/passwd", MediaErrorCode.URL_REFUSED),
        ("data:image/png;base64,AAAA", MediaErrorCode.URL_REFUSED),
        ("http://[::1", MediaErrorCode.FETCH_FAILED),
        ("http://", MediaErrorCode.FETCH_FAILED),
        ("/missing", MediaErrorCode.FETCH_FAILED),
    ],
)
async def test_checks_every_redirect(web: Web, location: str, code: MediaErrorCode) -> None:
    web.answers["/hop"] = redirect(location.format(port=web.port))
    error = await refusal(web.url("/hop"), resolver=DnsResolver(["127.0.0.2"]))
    assert error.code == code
    assert not any("/cat.png" in head for head in web.requests)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_refuses_self_signed_certificates(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(
        subprocess.run, [*command, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with serve(tls) as web:
        error = await refusal(f"https://127.0.0.1:{web.port}/cat.png")
        assert error.code == MediaErrorCode.FETCH_FAILED
        assert error.message == "cannot establish a trusted TLS connection to the URL's host"
        assert web.requests == []
