"""Policy for fetching media: rules on URLs and addresses. Pure; `glimpse.media.sources.fetch` opens the connections.

The front end sends the policy to its fetcher process as it is.
"""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from yarl import URL

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.address import is_public

WEB_PORTS = frozenset({80, 443, 8080, 8443})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """Rules that an operator sets for URLs in requests."""

    enabled: bool = True
    """False refuses every URL, so that requests must carry their media."""
    allowed_domains: frozenset[str] | None = None
    """The only hosts that URLs may name, each in the form of `host_name`; None allows all."""
    allowed_networks: tuple[str, ...] = ()
    """Networks that are allowed although they are not public, such as a private object store's: `10.1.0.0/16`."""
    allowed_ports: frozenset[int] | None = WEB_PORTS
    """The only ports that URLs may name, to keep clients away from other protocols; None allows all."""


def host_name(text: str) -> str:
    """Normalizes a host for `FetchPolicy`: lower case, ASCII (IDNA), no trailing dot.

    Raises:
        ValueError: The text is not a host name, or contains a wildcard.
    """
    # The parser is the one that reads request URLs, so that all spellings of a host match.
    host = URL.build(scheme="http", host=text).raw_host
    if not host or "*" in host:
        raise ValueError(f"expected a full host name, got {text!r}")
    return host.rstrip(".")


def check_url(url: URL, policy: FetchPolicy) -> None:
    """Checks the text of a URL. The address of its host is checked when the connection is opened.

    Raises:
        MediaError: URL_REFUSED, or INVALID_SOURCE if the host is missing or malformed.
    """
    if not policy.enabled:
        raise _refusal("this server does not fetch media from URLs; send the bytes or a data URL")
    if url.scheme not in ("http", "https"):
        raise _refusal("expected an http or https URL")
    if not url.raw_host:
        raise MediaError(MediaErrorCode.INVALID_SOURCE, "expected a URL with a host")
    if "%" in url.raw_host:  # a network interface of this host (fe80::1%eth0), or an obfuscated name
        raise MediaError(MediaErrorCode.INVALID_SOURCE, "expected a host name or an IP address in the URL")
    if url.raw_user is not None or url.raw_password is not None:
        raise _refusal("expected a URL without a user name and password")
    if policy.allowed_ports is not None and url.port not in policy.allowed_ports:
        raise _refusal(f"this server does not fetch media from port {url.port}")
    if policy.allowed_domains is not None and url.raw_host.rstrip(".") not in policy.allowed_domains:
        raise _refusal("this server does not fetch media from this URL's domain")


def is_allowed_address(address: str, policy: FetchPolicy) -> bool:
    """Returns whether the policy allows a connection to this IP address; False for any text that is not one."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return is_public(parsed) or any(parsed in ip_network(network) for network in policy.allowed_networks)


def _refusal(message: str) -> MediaError:
    return MediaError(MediaErrorCode.URL_REFUSED, message)
