"""MediaService: uploads of media files that later requests refer to."""

from collections.abc import AsyncIterator

from glimpse.media.sources.uploads import Upload, Uploads
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.rpc.http_bodies import PacedBody
from glimpse.v1 import media_pb2

Messages = AsyncIterator[media_pb2.UploadMediaRequest]

_DIGEST_BYTES = 32


class MediaHandlers:
    """Methods of MediaService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def upload(self, messages: Messages, call: CallContext) -> media_pb2.UploadMediaResponse:
        """UploadMedia."""
        self._check_enabled()
        body = PacedBody(messages, lambda message: len(message.chunk))
        header = _header(await body.next())
        num_bytes = header.size_bytes if header.HasField("size_bytes") else None
        tenant = call.tenant
        most = tenant.limits.max_upload_bytes
        with self._uploads.receive(
            digest=header.sha256, num_bytes=num_bytes, client=call.client, share=tenant.media, max_tenant_bytes=most
        ) as incoming:
            while (message := await body.next()) is not None:
                if message.WhichOneof("part") != "chunk":
                    raise InvalidRequest("part", "expected 'chunk' after the header")
                incoming.append(message.chunk)
            file = await incoming.finish()
        ttl_seconds = header.ttl_seconds if header.HasField("ttl_seconds") else None
        upload = await self._uploads.store(
            call.tenant.namespace(header.cache_salt), file, ttl_seconds=ttl_seconds, max_tenant_bytes=most
        )
        return media_pb2.UploadMediaResponse(media=_render(upload))

    async def get_media(self, request: media_pb2.GetMediaRequest, call: CallContext) -> media_pb2.GetMediaResponse:
        """GetMedia."""
        check_bounds(request)
        upload = await self._uploads.find(call.tenant.namespace(request.cache_salt), request.upload_id)
        if upload is None:
            raise _not_found()
        return media_pb2.GetMediaResponse(media=_render(upload))

    async def delete_media(
        self, request: media_pb2.DeleteMediaRequest, call: CallContext
    ) -> media_pb2.DeleteMediaResponse:
        """DeleteMedia."""
        check_bounds(request)
        if not await self._uploads.remove(call.tenant.namespace(request.cache_salt), request.upload_id):
            raise _not_found()
        return media_pb2.DeleteMediaResponse()

    def _check_enabled(self) -> None:
        if not self._uploads.is_enabled:
            message = "uploads are disabled on this server (--upload-cache-bytes 0)"
            raise InvalidRequest("part", message, "unsupported")


def _header(first: media_pb2.UploadMediaRequest | None) -> media_pb2.UploadHeader:
    """Returns the header, which the first message has. Raises InvalidRequest."""
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidRequest("header", "expected in the first message of an upload", "missing_value")
    check_bounds(first)
    if len(first.header.sha256) != _DIGEST_BYTES:
        message = f"expected {_DIGEST_BYTES} bytes, got {len(first.header.sha256)}"
        raise InvalidRequest("header.sha256", message)
    return first.header


def _not_found() -> InvalidRequest:
    return InvalidRequest("upload_id", "not found; it may have expired", "upload_not_found")


def _render(upload: Upload) -> media_pb2.Media:
    return media_pb2.Media(
        upload_id=upload.handle,
        size_bytes=upload.num_bytes,
        sha256=upload.digest,
        expires_at=int(upload.expires),
    )
