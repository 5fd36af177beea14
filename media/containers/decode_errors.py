"""Translation of exceptions from FFmpeg, PyAV and Pillow to errors about the client's file."""

from collections.abc import Generator
from contextlib import contextmanager

from glimpse.media.errors import MediaError, MediaErrorCode


@contextmanager
def report_decode_errors(name: str) -> Generator[None]:
    """Turns exceptions of the block into a MediaError about the `name`, such as "video". MediaErrors pass unchanged."""
    # FFmpeg's errors are OSErrors and ValueErrors; PyAV itself raises others for missing parts of a file. Pillow's
    # decoders raise many types: OSError, SyntaxError, ValueError, struct.error, IndexError, ….
    try:
        yield
    except MediaError:
        raise
    except MemoryError as error:
        message = f"decoding the {name} exceeds the decoder's memory limit"
        raise MediaError(MediaErrorCode.TOO_LARGE, message) from error
    except Exception as error:
        raise corrupt(name) from error


def corrupt(name: str) -> MediaError:
    """Returns the error for a file that cannot be read to its end."""
    return MediaError(MediaErrorCode.INVALID_MEDIA, f"the {name} is corrupt or truncated")


def cancelled(name: str) -> MediaError:
    """Returns the error that ends a decode whose caller was cancelled."""
    return MediaError(MediaErrorCode.INVALID_MEDIA, f"decoding of the {name} was cancelled")
