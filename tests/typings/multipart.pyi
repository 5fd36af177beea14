"""What the server uses of multipart. Packages of tests bring another of this name, which only pyright would take."""

from collections.abc import Iterable

class MultipartError(ValueError): ...
class ParserLimitReached(MultipartError): ...  # noqa: N818 - the library's name

class MultipartSegment:
    name: str | None
    filename: str | None

class PushMultipartParser:
    def __init__(
        self, boundary: str, *, max_header_size: int, max_header_count: int, max_segment_count: int
    ) -> None: ...
    def parse(self, chunk: bytes) -> Iterable[MultipartSegment | bytes | bytearray | None]: ...
    def close(self) -> None: ...
