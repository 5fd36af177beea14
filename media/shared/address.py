"""Addresses of the shared media store: `redis://` and `rediss://` URLs. Opens no connection."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

_REFUSAL = "this is no Redis URL; expected redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS"
_DEFAULT_PORT = 6379


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Where the shared media store is, and how to connect to it."""

    host: str
    port: int
    database: int
    username: str | None
    password: str | None = field(repr=False)
    tls: bool
    ca: Path | None
    """File with the authorities that may sign its certificate; None: the system's."""

    def __str__(self) -> str:
        """Returns the address without its password, for logs."""
        return f"{self.host}:{self.port}/{self.database}"


def parse_store_url(text: str, ca: Path | None = None) -> StoreAddress:
    """Parses a URL. Raises ValueError, whose message does not contain the URL, which may have a password."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError(_REFUSAL) from None
    if url.scheme not in ("redis", "rediss") or not url.hostname or url.query or url.fragment:
        raise ValueError(_REFUSAL)
    if ca is not None and url.scheme != "rediss":
        raise ValueError("a certificate authority needs a rediss:// URL: redis:// is not encrypted")
    return StoreAddress(
        host=url.hostname,
        port=_DEFAULT_PORT if port is None else port,
        database=_database(url),
        username=unquote(url.username) if url.username else None,
        password=unquote(url.password) if url.password else None,
        tls=url.scheme == "rediss",
        ca=ca,
    )


def _database(url: SplitResult) -> int:
    digits = url.path.removeprefix("/")
    if digits and not (digits.isascii() and digits.isdigit()):
        raise ValueError(_REFUSAL)
    return int(digits or 0)
