"""What can be wrong with a medium that a client sent. Messages speak of the client's input, never of this host."""

from enum import StrEnum


class MediaErrorCode(StrEnum):
    """Why a medium was refused."""

    INVALID_SOURCE = "invalid_media_source"
    """The URL, data URL or base64 text cannot be read as one."""
    URL_REFUSED = "media_url_refused"
    """The address is not one from which media may be fetched."""
    FETCH_FAILED = "media_fetch_failed"
    """The other server did not deliver it."""
    FETCH_TIMEOUT = "media_fetch_timeout"
    """The other server was too slow."""
    TOO_LARGE = "media_too_large"
    """More bytes or pixels than are accepted."""
    UNSUPPORTED_FORMAT = "unsupported_media_format"
    """The bytes are of no format that is decoded here."""
    INVALID_MEDIA = "invalid_media"
    """The format is known, but the file is damaged or its dimensions are impossible."""
    INVALID_EMBEDDINGS = "invalid_embeddings"
    """Not a dense tensor, or not one of the type, shape and values that the model takes."""
    INVALID_PARAMETER = "invalid_media_parameter"
    """A parameter of its processing is out of range, or contradicts another."""
    NOT_CACHED = "media_not_cached"
    """Only a uuid or an upload's handle was given, and nothing is kept under it."""
    OVERLOADED = "overloaded"
    """The media of all requests together take too much memory; later there may be room."""
    UPLOAD_MISMATCH = "upload_mismatch"
    """What was uploaded is not what was announced."""


class MediaError(Exception):
    """A medium that cannot be used, and why."""

    def __init__(self, code: MediaErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class OptionError(MediaError):
    """An option of a medium that is out of range or contradicts another option."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(MediaErrorCode.INVALID_PARAMETER, f"'{name}': {problem}")
        self.name = name
        """The option, as named in `VideoOptions`."""
        self.problem = problem
        """What is wrong with it, without its name."""
