"""What a fetch gives, wherever it runs."""

from dataclasses import dataclass

from glimpse.media.errors import MediaErrorCode

PIECE_BYTES = 64 << 10
"""A file is delivered in pieces of this size, so that a server that sends single bytes costs the receiver little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A fetched file."""

    data: bytes
    fresh_seconds: float
    """How long the file may be reused, according to all servers along the redirects; 0 if it may not."""


def timed_out(seconds: float) -> tuple[MediaErrorCode, str]:
    """Returns the code and message of the error for a file that did not arrive in time."""
    return MediaErrorCode.FETCH_TIMEOUT, f"the media server did not deliver the file within {seconds:g} s"
