"""What FFmpeg and PyAV trip over in a stranger's file, told as an error of that file. Knows no formats."""

from collections.abc import Generator
from contextlib import contextmanager

from glimpse.media.errors import MediaError, MediaErrorCode


@contextmanager
def report_decode_errors(name: str) -> Generator[None]:
    """What the block raises becomes a MediaError about the `name`, such as "video"; MediaErrors stay as they are."""
    # FFmpeg's errors are OSErrors and ValueErrors; PyAV itself trips over what is missing.
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        message = f"the {name} takes more memory to decode than there is"
        raise MediaError(MediaErrorCode.TOO_LARGE, message) from error
    except Exception as error:
        raise corrupt(name) from error


def corrupt(name: str) -> MediaError:
    """The error of a file that cannot be read to its end."""
    return MediaError(MediaErrorCode.INVALID_MEDIA, f"the {name} is damaged or cut short")
