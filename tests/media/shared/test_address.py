"""URLs of the media store."""

from pathlib import Path

import pytest

from glimpse.media.shared.address import parse_store_url


def test_parts_have_defaults() -> None:
    address = parse_store_url("redis://cache")
    assert (address.host, address.port, address.database) == ("cache", 6379, 0)
    assert (address.username, address.password, address.tls, address.ca) == (None, None, False, None)


def test_all_parts_are_read_and_unquoted() -> None:
    address = parse_store_url("rediss://me:p%40ss@[::1]:7000/3", Path("/ca.pem"))
    assert (address.host, address.port, address.database) == ("::1", 7000, 3)
    assert (address.username, address.password, address.tls) == ("me", "p@ss", True)
    assert address.ca == Path("/ca.pem")
    assert "p@ss" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cache",
        "cache:6379",
        "http://cache",
        "redis://",
        "redis://cache:x",
        "redis://cache/x",
        "redis://cache/0?db=1",
    ],
)
def test_refuses_other_urls(text: str) -> None:
    with pytest.raises(ValueError, match="expected redis://"):
        parse_store_url(text)


def test_certificate_authority_needs_tls() -> None:
    with pytest.raises(ValueError, match="rediss://"):
        parse_store_url("redis://cache", Path("/ca.pem"))
