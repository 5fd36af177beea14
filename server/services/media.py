"""MediaService: files that clients send ahead of the requests that are about them."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources.uploads import Upload, Uploads
from glimpse.server.parse.chat import check_bounds
from glimpse.server.rpc.errors import InvalidRequest
from glimpse.v1 import media_pb2

Context = grpc.aio.ServicerContext[object, object]
Parts = AsyncIterator[media_pb2.UploadMediaRequest]

_DIGEST_BYTES = 32
_IDLE_SECONDS = 30.0
"""Between two parts of an upload, which holds memory as long as it lasts."""


class MediaHandlers:
    """MediaService's methods; they raise what glimpse.server.rpc.errors knows."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def upload(self, parts: Parts, _context: Context) -> media_pb2.UploadMediaResponse:
        """UploadMedia."""
        self._check_taken()
        header = await _header(parts)
        num_bytes = header.size_bytes if header.HasField("size_bytes") else None
        with self._uploads.receive(digest=header.sha256, num_bytes=num_bytes) as incoming:
            while (part := await _next_part(parts)) is not None:
                if part.WhichOneof("part") != "chunk":
                    raise InvalidRequest("part", "After the header come pieces of the file.")
                incoming.take(part.chunk)
            file = await incoming.finish()
        ttl_seconds = header.ttl_seconds if header.HasField("ttl_seconds") else None
        upload = self._uploads.keep(header.cache_salt, file, ttl_seconds=ttl_seconds)
        return media_pb2.UploadMediaResponse(media=_render(upload))

    async def get_media(self, request: media_pb2.GetMediaRequest, _context: Context) -> media_pb2.GetMediaResponse:
        """GetMedia."""
        check_bounds(request)
        upload = self._uploads.find(request.cache_salt, request.upload_id)
        if upload is None:
            raise _not_found()
        return media_pb2.GetMediaResponse(media=_render(upload))

    async def delete_media(
        self, request: media_pb2.DeleteMediaRequest, _context: Context
    ) -> media_pb2.DeleteMediaResponse:
        """DeleteMedia."""
        check_bounds(request)
        if not self._uploads.remove(request.cache_salt, request.upload_id):
            raise _not_found()
        return media_pb2.DeleteMediaResponse()

    def _check_taken(self) -> None:
        if not self._uploads.is_enabled:
            raise InvalidRequest("part", "This server takes no uploads (--upload-cache-size 0).", "unsupported")


async def _header(parts: Parts) -> media_pb2.UploadHeader:
    """The first part. Raises InvalidRequest."""
    first = await _next_part(parts)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidRequest("header", "An upload begins with its header.", "missing_value")
    check_bounds(first)
    if len(first.header.sha256) != _DIGEST_BYTES:
        raise InvalidRequest("header.sha256", f"A SHA-256 has {_DIGEST_BYTES} bytes.")
    return first.header


async def _next_part(parts: Parts) -> media_pb2.UploadMediaRequest | None:
    """None after the last. Raises MediaError where none comes."""
    try:
        async with asyncio.timeout(_IDLE_SECONDS):
            return await anext(parts, None)
    except TimeoutError:
        message = f"nothing of the upload has come for {_IDLE_SECONDS:g} s"
        raise MediaError(MediaErrorCode.UPLOAD_MISMATCH, message) from None


def _not_found() -> InvalidRequest:
    return InvalidRequest("upload_id", "There is no such upload, or no longer.", "upload_not_found")


def _render(upload: Upload) -> media_pb2.Media:
    return media_pb2.Media(
        upload_id=upload.handle,
        size_bytes=len(upload.file.data),
        sha256=upload.file.digest,
        expires_at=int(upload.expires),
    )
