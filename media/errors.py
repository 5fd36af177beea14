"""Errors in media that a client sent. Messages describe the client's input and reveal nothing about this host."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum


class MediaErrorCode(StrEnum):
    """Reason for refusing a media input."""

    INVALID_SOURCE = "invalid_media_source"
    """The URL, data URL or base64 text is malformed."""
    URL_REFUSED = "media_url_refused"
    """The server's policy does not allow fetching from this URL or address."""
    FETCH_FAILED = "media_fetch_failed"
    """The media server did not deliver the file."""
    FETCH_TIMEOUT = "media_fetch_timeout"
    """The media server did not deliver the file in time."""
    TOO_LARGE = "media_too_large"
    """More bytes, pixels, frames or decoding time than the server accepts."""
    UNSUPPORTED_FORMAT = "unsupported_media_format"
    """The server does not decode this file format or codec."""
    INVALID_MEDIA = "invalid_media"
    """The format is supported, but the file is corrupt or has impossible dimensions."""
    INVALID_EMBEDDINGS = "invalid_embeddings"
    """Not a dense tensor, or a tensor whose type, shape or values the model does not accept."""
    INVALID_PARAMETER = "invalid_media_parameter"
    """A processing option is out of range or contradicts another one."""
    NOT_CACHED = "media_not_cached"
    """The request refers to media by uuid or upload handle, and nothing is cached under it."""
    STORE_UNAVAILABLE = "media_store_unavailable"
    """The request needs the media store that replicas share, which cannot be reached, or the state folder, which cannot
    be written; a later attempt may succeed."""
    OVERLOADED = "overloaded"
    """The media of all requests together exceed the memory budget; a later attempt may succeed."""
    WORKER_KILLED = "media_worker_killed"
    """The processes that decoded the media were killed, by something outside; a later attempt may succeed."""
    TOO_MANY_IMAGES = "too_many_images"
    """The pages of a document, with the other images of the prompt, are more than the server accepts."""
    UPLOAD_MISMATCH = "upload_mismatch"
    """The uploaded bytes differ from the announced size or hash."""


class MediaError(Exception):
    """A media input that cannot be used."""

    def __init__(self, code: MediaErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def too_large(max_bytes: int, what: str = "a file") -> MediaError:
    """Returns the error for input of more than `max_bytes`; `what` names the input, with its article."""
    return MediaError(MediaErrorCode.TOO_LARGE, f"expected {what} of at most {max_bytes} bytes, got more")


def store_unavailable(advice: str) -> MediaError:
    """Returns the error for a request that needs the store of media; `advice` says what the client can do."""
    message = f"the server's --media-store is not reached, or the disk of its --state-folder is full or fails; {advice}"
    return MediaError(MediaErrorCode.STORE_UNAVAILABLE, message)


class MediaOptionError(MediaError):
    """A processing option that is out of range or contradicts another one."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(MediaErrorCode.INVALID_PARAMETER, f"'{name}': {problem}")
        self.name = name
        """The option, as named in `VideoOptions`."""
        self.problem = problem
        """What is wrong with it, without its name."""


@contextmanager
def blaming(refusal: Callable[..., Exception], field: str) -> Generator[None]:
    """Raises `refusal` of a field and a message for a MediaError in the block, with its code as the third argument.

    A MediaOptionError is about that option below `field`, and has no code.
    """
    try:
        yield
    except MediaOptionError as error:
        raise refusal(f"{field}.{error.name}", error.problem) from error
    except MediaError as error:
        raise refusal(field, error.message, error.code) from error
