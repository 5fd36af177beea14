"""From where media may be fetched: rules on URLs and addresses. Pure; `media.sources.fetch` opens the connections."""

from dataclasses import dataclass
from ipaddress import ip_address

from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.address import IPNetwork, is_public

WEB_PORTS = frozenset({80, 443, 8080, 8443})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """What an operator lets clients make this server fetch."""

    enabled: bool = True
    """False refuses every URL; media then come inside the request."""
    allowed_domains: frozenset[str] | None = None
    """Hosts to which URLs are restricted, each as `host_name` gives it; None restricts nothing."""
    allowed_networks: tuple[IPNetwork, ...] = ()
    """Networks that may be reached although they are not public, such as that of a store of one's own."""
    allowed_ports: frozenset[int] | None = WEB_PORTS
    """Ports to which URLs are restricted, so that other protocols cannot be spoken to; None restricts nothing."""


def host_name(text: str) -> str:
    """A host as `FetchPolicy` lists it: in lower case, its letters ASCII's, without a dot at the end.

    Raises:
        ValueError: it is none, or stands for many.
    """
    # By the parser that reads the URLs, so that a host is allowed however it is written.
    host = URL.build(scheme="http", host=text).raw_host
    if not host or "*" in host:
        raise ValueError(f"{text!r} is not a host's full name")
    return host.rstrip(".")


def check_url(url: URL, policy: FetchPolicy) -> None:
    """Refuses a URL by what is written in it. Where its host leads is checked when the connection is made.

    Raises:
        MediaError: URL_REFUSED, or INVALID_SOURCE if its host is none.
    """
    if not policy.enabled:
        raise _refusal("this server fetches no media from URLs; send the bytes, or a data URL")
    if url.scheme not in ("http", "https"):
        raise _refusal("media are fetched from http and https URLs only")
    if not url.raw_host:
        raise MediaError(MediaErrorCode.INVALID_SOURCE, "the URL has no host")
    if "%" in url.raw_host:  # a network interface of this host (fe80::1%eth0), or a name written to be misread
        raise MediaError(MediaErrorCode.INVALID_SOURCE, "the URL's host is neither a name nor an address")
    if url.raw_user is not None or url.raw_password is not None:
        raise _refusal("media are not fetched from URLs that carry a user name or a password")
    if policy.allowed_ports is not None and url.port not in policy.allowed_ports:
        raise _refusal(f"media are not fetched from port {url.port}")
    if policy.allowed_domains is not None and url.raw_host.rstrip(".") not in policy.allowed_domains:
        raise _refusal("media are not fetched from this URL's domain")


def is_allowed_address(address: str, policy: FetchPolicy) -> bool:
    """Whether a connection to this IP address may be made; false for any text that is not exactly one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return is_public(parsed) or any(parsed in network for network in policy.allowed_networks)


def _refusal(message: str) -> MediaError:
    return MediaError(MediaErrorCode.URL_REFUSED, message)
