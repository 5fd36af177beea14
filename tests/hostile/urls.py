"""Hostile and unusual URLs and the expected result of each. {port} is the port of the suite's web server."""

from dataclasses import dataclass

from glimpse.media.errors import MediaErrorCode
from tests.hostile.zone import HOST

INVALID = MediaErrorCode.INVALID_SOURCE
REFUSED = MediaErrorCode.URL_REFUSED
FAILED = MediaErrorCode.FETCH_FAILED
TIMEOUT = MediaErrorCode.FETCH_TIMEOUT
TOO_LARGE = MediaErrorCode.TOO_LARGE
UNSUPPORTED = MediaErrorCode.UNSUPPORTED_FORMAT
DAMAGED = MediaErrorCode.INVALID_MEDIA


@dataclass(frozen=True, slots=True)
class HostileUrl:
    """A URL and its expected error."""

    url: str
    code: MediaErrorCode | None
    """None if it loads as an image."""


_LOOPBACK = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0x7f000001", "0x7F.0.0.1", "0x7f.1", "127.0x0.0.1", "0x0",
    "localhost", "LOCALHOST", "LocalHost",
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000::0001]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::1]", "[2001:0:7f00:1::1]",
    "①②⑦.⓪.⓪.①", "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "ｌｏｃａｌｈｏｓｔ",
]  # fmt: skip
_METADATA = [
    "169.254.169.254", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "[::ffff:a9fe:a9fe]", "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[::169.254.169.254]", "[fd00:ec2::254]", "[fe80::a9fe:a9fe]",
    "①⑥⑨.②⑤④.①⑥⑨.②⑤④", "100.100.100.200", "168.63.129.16", "192.0.0.192",
]  # fmt: skip
_NO_HOSTS = [
    # Loopback and metadata addresses in notations that only some programs accept.
    "127.1", "127.0.1", "2130706433", "017700000001", "0177.0.0.1", "0177.0.0.01", "127.000.000.001", "0", "127.0.0.1.",
    "2852039166", "0251.0376.0251.0376", "0251.254.169.254", "169.254.43518", "169.16689662", "loc\u00adalhost",
]  # fmt: skip
_NOT_PUBLIC = [
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "198.18.0.1", "192.0.2.1", "203.0.113.9",
    "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "[fc00::1]", "[fdff::1]", "[fec0::1]", "[ff02::1]",
    "[2001:db8::1]", "[100::1]",
]  # fmt: skip
_NAMES = [
    "loopback", "private", "metadata", "mapped", "nat64", "all-private", "no-address", "örtlich",
]  # fmt: skip

_WRITTEN: dict[str, tuple[str, MediaErrorCode]] = {
    "user before loopback": ("http://example.com@127.0.0.1:{port}/cat.png", REFUSED),
    "loopback as user": ("http://127.0.0.1@example.com/cat.png", REFUSED),
    "user and password": ("http://me:secret@127.0.0.1/", REFUSED),
    "two at signs": ("http://a@example.com@127.0.0.1/", REFUSED),
    "slash in the user": ("http://example.com%2F@127.0.0.1/", REFUSED),
    "number sign before the host": ("http://example.com%23@127.0.0.1/", REFUSED),
    "backslash before an at sign": ("http://example.com\\@127.0.0.1/", INVALID),
    "backslashes instead of slashes": ("http:\\\\127.0.0.1\\cat.png", INVALID),
    "a slash and a backslash": ("http:/\\127.0.0.1/cat.png", INVALID),
    "backslash in the host": ("http://127.0.0.1\\.example.com/", INVALID),
    "three slashes": ("http:///127.0.0.1/cat.png", INVALID),
    "one slash": ("http:/127.0.0.1/cat.png", INVALID),
    "no slash": ("http:127.0.0.1/cat.png", INVALID),
    "no host": ("http://", INVALID),
    "only a port": ("http://:80/", INVALID),
    "a tab in the host": ("http://127.0\t.0.1/", INVALID),
    "a line break in the host": ("http://exam\nple.com/", INVALID),
    "header injection": ("http://example.com/\r\nX-Injected: yes", INVALID),
    "a space in the host": ("http://exa mple.com/", INVALID),
    "a zero byte": ("http://127.0.0.1\0.example.com/", INVALID),
    "a percent sign in the host": ("http://%31%32%37.0.0.1/", INVALID),
    "an encoded zero byte": ("http://127.0.0.1%00.example.com/", INVALID),
    "a zone": ("http://[fe80::1%25lo]/", INVALID),
    "an open bracket": ("http://[::1", INVALID),
    "full-width bracket": ("http://\uff3b", INVALID),
    "a user of empty brackets": ("http://[]x@", INVALID),
    "no address in brackets": ("http://[example.com]/", INVALID),
    "two ports": ("http://127.0.0.1:80:80/", INVALID),
    "a port out of range": ("http://example.com:99999/", INVALID),
    "a negative port": ("http://example.com:-1/", INVALID),
    "invalid punycode": ("http://xn--\u2060.example/", INVALID),
    "a very long URL": ("http://example.com/" + "a" * 9000, INVALID),
    "a very long host": ("http://" + "a" * 300 + ".example/", FAILED),
    "SSH port": ("http://good.hostile:22/", REFUSED),
    "Redis port": ("http://good.hostile:6379/", REFUSED),
    "port 0": ("http://good.hostile:0/", REFUSED),
    "file URL": ("file:///etc/passwd", REFUSED),
    "file URL with a host": ("file://127.0.0.1/etc/passwd", REFUSED),
    "file URL in upper case": ("FILE:/etc/passwd", REFUSED),
    "ftp": ("ftp://127.0.0.1/cat.png", REFUSED),
    "gopher": ("gopher://127.0.0.1:6379/_FLUSHALL", REFUSED),
    "dict": ("dict://127.0.0.1:11211/stat", REFUSED),
    "ldap": ("ldap://127.0.0.1/x", REFUSED),
    "jar": ("jar:http://127.0.0.1!/cat.png", REFUSED),
    "javascript": ("javascript:alert(1)", REFUSED),
    "view-source": ("view-source:http://127.0.0.1/", REFUSED),
    "a Windows share": ("\\\\127.0.0.1\\share\\cat.png", INVALID),
    "a path": ("/etc/passwd", INVALID),
    "no scheme": ("//127.0.0.1/cat.png", INVALID),
    "white space": ("   ", INVALID),
    "unknown host": ("http://unknown.hostile:{port}/cat.png", FAILED),
}
"""By the reason why they are refused."""

SERVED: dict[str, MediaErrorCode | None] = {
    # Paths of the suite's web server (tests.hostile.server).
    "good": None,
    "png as html": None,
    "png as video": None,
    "without a content type": None,
    "redirected": None,
    "five redirects": None,
    "html as png": UNSUPPORTED,
    "svg": UNSUPPORTED,
    "json as jpeg": UNSUPPORTED,
    "playlist as png": UNSUPPORTED,
    "empty": DAMAGED,
    "to loopback": REFUSED,
    "to loopback in hex": REFUSED,
    "to IPv6 loopback": REFUSED,
    "to metadata": REFUSED,
    "to another port": REFUSED,
    "to a private name": REFUSED,
    "to localhost": REFUSED,
    "to a file": REFUSED,
    "to a data URL": REFUSED,
    "to ftp": REFUSED,
    "to a URL with a password": REFUSED,
    "redirect without location": FAILED,
    "to an invalid URL": FAILED,
    "to itself": FAILED,
    "six redirects": FAILED,
    "to loopback with status 308": REFUSED,
    "status 204": FAILED,
    "status 206": FAILED,
    "status 300": FAILED,
    "status 401": FAILED,
    "status 404": FAILED,
    "status 500": FAILED,
    "gzip bomb": FAILED,
    "claims gigabytes": TOO_LARGE,
    "has gigabytes": TOO_LARGE,
    "has gigabytes in chunks": TOO_LARGE,
    "shorter than its content length": FAILED,
    "negative length": FAILED,
    "two lengths": FAILED,
    "endless headers": FAILED,
    "a huge header": FAILED,
    "another protocol": FAILED,
    "empty response": FAILED,
    "broken chunks": FAILED,
    "endless early hints": FAILED,
    "endless chunks of a byte": FAILED,
    "never answers": TIMEOUT,
    "headers byte by byte": TIMEOUT,
    "body byte by byte": TIMEOUT,
    "body stalls": TIMEOUT,
    "endless 100 Continue": TIMEOUT,
}


def hostile_urls(port: int) -> dict[str, HostileUrl]:
    """Returns all URLs by name. The web server listens on `port`; the only other allowed ports are 80 and 443."""
    urls = {f"host {host}": HostileUrl(f"http://{host}:{port}/cat.png", REFUSED) for host in _LOOPBACK}
    urls |= {f"host {host}": HostileUrl(f"http://{host}/latest/meta-data/", REFUSED) for host in _METADATA}
    urls |= {f"host {host}": HostileUrl(f"http://{host}:{port}/cat.png", INVALID) for host in _NO_HOSTS}
    urls |= {f"host {host}": HostileUrl(f"https://{host}/cat.png", REFUSED) for host in _NOT_PUBLIC}
    urls |= {f"name {name}": HostileUrl(f"http://{name}.hostile:{port}/cat.png", REFUSED) for name in _NAMES}
    urls |= {name: HostileUrl(url.replace("{port}", str(port)), code) for name, (url, code) in _WRITTEN.items()}
    urls |= {
        f"served: {name}": HostileUrl(f"http://{HOST}:{port}/{name.replace(' ', '-')}", code)
        for name, code in SERVED.items()
    }
    for name in ("rebinding", "rebinding-to-metadata"):
        urls[f"name {name}"] = HostileUrl(f"http://{name}.hostile:{port}/redirected", REFUSED)
    return urls
