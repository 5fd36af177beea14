"""MediaService: files that later requests refer to."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Protocol

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.sources.files import STORED
from glimpse.media.sources.uploads import FileDetails, FoundUploads, Upload, Uploads
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.parse.media import blaming
from glimpse.server.rpc.http_bodies import PacedBody
from glimpse.v1 import media_pb2

Messages = AsyncIterator[media_pb2.UploadMediaRequest]
_OneFile = media_pb2.GetMediaRequest | media_pb2.DownloadMediaRequest | media_pb2.DeleteMediaRequest

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
"""What files may be for, as OpenAI's are."""
_LISTED_PURPOSES = (*PURPOSES, "batch_output")

_DIGEST_BYTES = 32
_FILENAME_BYTES = 255
"""The longest name of a file, as in most file systems."""
_CHUNK_BYTES = 1 << 20
_READ_SECONDS = 30.0
"""Limit on reading a file from the shared store."""
_MAX_LISTED = 1000
"""Files of a list whose request sets no limit."""


class WrittenFiles(Protocol):
    """Files that the server has written for tenants. `namespace`: what those of a tenant begin with.

    Methods raise MediaError (STORE_UNAVAILABLE).
    """

    async def find(self, namespace: str, file_id: str) -> Upload | None: ...

    async def find_all(self, namespace: str) -> Sequence[Upload]:
        """Returns all files of a tenant."""
        ...

    def read(self, file_id: str) -> AsyncGenerator[bytes]:
        """Yields the bytes of a file that was found."""
        ...

    async def remove(self, file_id: str) -> None:
        """Removes a file that was found."""
        ...


class MediaHandlers:
    """Methods of MediaService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(self, uploads: Uploads, stored: Uploads, written: WrittenFiles) -> None:
        """`stored`: the media of stored responses. They can be read, are in no list, and leave with their responses."""
        self._uploads = uploads
        self._stored = stored
        self._written = written

    async def upload(self, messages: Messages, call: CallContext) -> media_pb2.UploadMediaResponse:
        self._check_enabled()
        with blaming("chunk"):
            header, file = await self._receive(PacedBody(messages, lambda message: len(message.chunk)), call)
            upload = await self._uploads.store(
                call.tenant.namespace(header.cache_salt),
                file,
                ttl_seconds=header.ttl_seconds if header.HasField("ttl_seconds") else None,
                max_tenant_bytes=call.tenant.limits.max_upload_bytes,
                details=FileDetails(header.filename, header.purpose or "user_data"),
            )
        return media_pb2.UploadMediaResponse(media=_render(upload))

    async def _receive(
        self, body: PacedBody[media_pb2.UploadMediaRequest], call: CallContext
    ) -> tuple[media_pb2.UploadHeader, MediaFile]:
        """Returns the header, which comes first or last, and the file."""
        first = await body.next()
        header = _header(first) if first is not None and first.WhichOneof("part") == "header" else None
        with self._uploads.receive(
            num_bytes=None if header is None else _size(header),
            client=call.client,
            share=call.tenant.media,
            max_tenant_bytes=call.tenant.limits.max_upload_bytes,
        ) as incoming:
            message = first if header is None else await body.next()
            while message is not None and message.WhichOneof("part") == "chunk":
                incoming.append(message.chunk)
                message = await body.next()
            if header is None:
                header = _header(message)
                message = await body.next()
            if message is not None:
                raise InvalidRequest("part", "expected 'chunk' after the header, or nothing")
            return header, await incoming.finish(digest=header.sha256 or None, num_bytes=_size(header))

    async def get_media(self, request: media_pb2.GetMediaRequest, call: CallContext) -> media_pb2.GetMediaResponse:
        check_bounds(request)
        upload = await self._find_written(request, call)
        if upload is None:
            uploads = self._holding(request.upload_id)
            upload = await uploads.find(call.tenant.namespace(request.cache_salt), request.upload_id)
        if upload is None:
            raise _not_found()
        return media_pb2.GetMediaResponse(media=_render(upload))

    async def list_media(self, request: media_pb2.ListMediaRequest, call: CallContext) -> media_pb2.ListMediaResponse:
        check_bounds(request)
        _check_purpose(request.purpose, "purpose", _LISTED_PURPOSES)
        if request.order not in ("", "asc", "desc"):
            raise InvalidRequest("order", f"expected 'asc' or 'desc', got '{request.order[:64]}'")
        found = await self._uploads.find_all(call.tenant.namespace(request.cache_salt))
        written = () if request.cache_salt else await self._written.find_all(call.tenant.namespace_prefix)
        return await run(call.client, _render_list, request, found, written)

    async def download(
        self, request: media_pb2.DownloadMediaRequest, call: CallContext
    ) -> AsyncGenerator[media_pb2.DownloadMediaResponse, None]:
        check_bounds(request)
        if (written := await self._find_written(request, call)) is not None:
            yield media_pb2.DownloadMediaResponse(media=_render(written))
            async with aclosing(self._written.read(request.upload_id)) as parts:
                async for part in parts:
                    for start in range(0, len(part), _CHUNK_BYTES):
                        yield media_pb2.DownloadMediaResponse(chunk=part[start : start + _CHUNK_BYTES])
            return
        async with self._holding(request.upload_id).opened(
            call.tenant.namespace(request.cache_salt),
            request.upload_id,
            seconds=_READ_SECONDS,
            client=call.client,
            share=call.tenant.media,
        ) as opened:
            if opened is None:
                raise _not_found()
            upload, file = opened
            yield media_pb2.DownloadMediaResponse(media=_render(upload))
            for start in range(0, len(file.data), _CHUNK_BYTES):
                yield media_pb2.DownloadMediaResponse(chunk=file.data[start : start + _CHUNK_BYTES])

    async def delete_media(
        self, request: media_pb2.DeleteMediaRequest, call: CallContext
    ) -> media_pb2.DeleteMediaResponse:
        check_bounds(request)
        if await self._find_written(request, call) is not None:
            await self._written.remove(request.upload_id)
        elif not await self._uploads.remove(call.tenant.namespace(request.cache_salt), request.upload_id):
            raise _not_found()
        return media_pb2.DeleteMediaResponse(upload_id=request.upload_id, deleted=True)

    def _holding(self, upload_id: str) -> Uploads:
        return self._stored if upload_id.startswith(STORED) else self._uploads

    async def _find_written(self, request: _OneFile, call: CallContext) -> Upload | None:
        """Returns the file of the server's own that a request means, if it means one."""
        return None if request.cache_salt else await self._written.find(call.tenant.namespace_prefix, request.upload_id)

    def _check_enabled(self) -> None:
        if not self._uploads.is_enabled:
            message = "uploads are disabled on this server (--upload-cache-bytes 0)"
            raise InvalidRequest("part", message, "unsupported")


def _header(message: media_pb2.UploadMediaRequest | None) -> media_pb2.UploadHeader:
    """Returns the header of an upload. Raises InvalidRequest."""
    if message is None or message.WhichOneof("part") != "header":
        raise InvalidRequest("header", "expected in the first message of an upload or in the last", "missing_value")
    check_bounds(message)
    header = message.header
    if len(header.sha256) not in (0, _DIGEST_BYTES):
        raise InvalidRequest("header.sha256", f"expected {_DIGEST_BYTES} bytes, got {len(header.sha256)}")
    if (num_bytes := len(header.filename.encode())) > _FILENAME_BYTES:
        raise InvalidRequest("header.filename", f"expected at most {_FILENAME_BYTES} bytes, got {num_bytes}")
    if not header.filename.isprintable():
        raise InvalidRequest("header.filename", "expected text without control characters")
    _check_purpose(header.purpose, "header.purpose")
    return header


def _size(header: media_pb2.UploadHeader) -> int | None:
    return header.size_bytes if header.HasField("size_bytes") else None


def _check_purpose(purpose: str, field: str, purposes: Sequence[str] = PURPOSES) -> None:
    if purpose and purpose not in purposes:
        raise InvalidRequest(field, f"expected one of {', '.join(purposes)}, got '{purpose[:64]}'")


def _render_list(
    request: media_pb2.ListMediaRequest, found: FoundUploads, written: Sequence[Upload]
) -> media_pb2.ListMediaResponse:
    """Returns a page of the list. Raises InvalidRequest."""
    uploads = found.read(written)
    if request.order == "asc":
        uploads.reverse()
    if request.after:
        uploads = _after(uploads, request.after)
    listed = [each for each in uploads if request.purpose in ("", each.details.purpose)]
    limit = request.limit if request.HasField("limit") else _MAX_LISTED
    page = [_render(upload) for upload in listed[:limit]]
    ends = {"first_id": page[0].upload_id, "last_id": page[-1].upload_id} if page else {}
    return media_pb2.ListMediaResponse(media=page, has_more=len(listed) > limit, **ends)


def _after(uploads: list[Upload], handle: str) -> list[Upload]:
    """Returns the uploads that follow one in a list. Raises InvalidRequest."""
    for index, upload in enumerate(uploads):
        if upload.handle == handle:
            return uploads[index + 1 :]
    raise InvalidRequest("after", "expected the id of a file of the list; it may have expired", "upload_not_found")


def _not_found() -> InvalidRequest:
    return InvalidRequest("upload_id", "not found; it may have expired", "upload_not_found")


def _render(upload: Upload) -> media_pb2.Media:
    # What is stored with a response has no name; its details say how it came.
    details = FileDetails("", "user_data") if upload.handle.startswith(STORED) else upload.details
    return media_pb2.Media(
        upload_id=upload.handle,
        size_bytes=upload.num_bytes,
        sha256=upload.digest,
        expires_at=int(upload.expires),
        created_at=int(upload.created),
        filename=details.filename,
        purpose=details.purpose,
    )
