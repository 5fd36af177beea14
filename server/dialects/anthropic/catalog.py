"""The methods behind Anthropic's models and files, which are those of ModelService and MediaService."""

import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from glimpse.anthropic.v1 import catalog_pb2
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import check_bounds
from glimpse.server.services.media import MediaHandlers
from glimpse.server.services.models import ModelHandlers
from glimpse.v1 import media_pb2, model_pb2

_MAX_MODELS = 20
"""Models of a list whose request sets no limit, as in Anthropic's API."""
_PAGE = "page_"
"""What cursors begin with; the id of a file follows."""
_MAX_FILES = 10_000
"""The most files that can be listed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogHandlers:
    """Methods of CatalogService."""

    models: ModelHandlers
    media: MediaHandlers

    async def list_models(
        self, request: catalog_pb2.ListModelInfosRequest, call: CallContext
    ) -> catalog_pb2.ListModelInfosResponse:
        check_bounds(request)
        listed = (await self.models.list_models(model_pb2.ListModelsRequest(), call)).data
        ids = [model.id for model in listed]
        start = _index(ids, request.after_id, "after_id") + 1 if request.after_id else 0
        end = _index(ids, request.before_id, "before_id") if request.before_id else len(ids)
        limit = request.limit if request.HasField("limit") else _MAX_MODELS
        has_more = end - start > limit
        if has_more and request.before_id:
            start = end - limit
        data = [_model_info(model) for model in listed[start:end][:limit]]
        ends = {"first_id": data[0].id, "last_id": data[-1].id} if data else {}
        return catalog_pb2.ListModelInfosResponse(data=data, has_more=has_more, **ends)

    async def get_model(self, request: catalog_pb2.GetModelInfoRequest, call: CallContext) -> catalog_pb2.ModelInfo:
        call.adapted["model"] = "model_id"
        found = await self.models.get_model(model_pb2.GetModelRequest(model=request.model_id), call)
        return _model_info(found.model)

    async def upload(
        self, messages: AsyncIterator[catalog_pb2.UploadFileRequest], call: CallContext
    ) -> catalog_pb2.FileMetadata:
        call.adapted["header.ttl_seconds"] = "header.expires_in_seconds"
        return _file((await self.media.upload(_uploads(messages), call)).media)

    async def list_files(
        self, request: catalog_pb2.ListFileMetadataRequest, call: CallContext
    ) -> catalog_pb2.ListFileMetadataResponse:
        check_bounds(request)
        given = [name for name in ("page", "after_id", "ids") if getattr(request, name)]
        if len(given) > 1:
            raise InvalidRequest(given[0], f"expected only one of {' and '.join(given)}", "conflicting_values")
        if request.page and not request.page.startswith(_PAGE):
            raise InvalidRequest("page", "expected the next_page of a list of files")
        call.adapted["after"] = "page" if request.page else "after_id"
        limit = request.limit if request.HasField("limit") else None
        after = request.page.removeprefix(_PAGE) or request.after_id
        listed = await self.media.list_media(
            media_pb2.ListMediaRequest(limit=_MAX_FILES if request.ids else limit, after=after), call
        )
        if request.ids:
            wanted = frozenset(request.ids)
            data = [_file(each) for each in listed.media if each.upload_id in wanted]
            return catalog_pb2.ListFileMetadataResponse(data=data)
        ends = {name: getattr(listed, name) for name in ("first_id", "last_id") if listed.HasField(name)}
        return catalog_pb2.ListFileMetadataResponse(
            data=map(_file, listed.media),
            next_page=f"{_PAGE}{listed.last_id}" if listed.has_more else None,
            has_more=listed.has_more,
            **ends,
        )

    async def get_file(
        self, request: catalog_pb2.GetFileMetadataRequest, call: CallContext
    ) -> catalog_pb2.FileMetadata:
        call.adapted["upload_id"] = "file_id"
        found = await self.media.get_media(media_pb2.GetMediaRequest(upload_id=request.file_id), call)
        return _file(found.media)

    async def delete_file(
        self, request: catalog_pb2.DeleteUploadedFileRequest, call: CallContext
    ) -> catalog_pb2.DeletedFile:
        call.adapted["upload_id"] = "file_id"
        await self.media.delete_media(media_pb2.DeleteMediaRequest(upload_id=request.file_id), call)
        return catalog_pb2.DeletedFile(id=request.file_id)


async def _uploads(
    messages: AsyncIterator[catalog_pb2.UploadFileRequest],
) -> AsyncGenerator[media_pb2.UploadMediaRequest]:
    async for message in messages:
        if message.WhichOneof("part") == "chunk":
            yield media_pb2.UploadMediaRequest(chunk=message.chunk)
            continue
        header = media_pb2.UploadHeader(filename=message.header.filename)
        if message.header.HasField("expires_in_seconds"):
            header.ttl_seconds = message.header.expires_in_seconds
        yield media_pb2.UploadMediaRequest(header=header)


def _index(ids: Sequence[str], wanted: str, field: str) -> int:
    """Returns where an id stands in a list. Raises InvalidRequest."""
    if wanted not in ids:
        raise InvalidRequest(field, "expected the id of a model of the list")
    return ids.index(wanted)


def _model_info(model: model_pb2.Model) -> catalog_pb2.ModelInfo:
    return catalog_pb2.ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=_time(model.created),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
        capabilities=_capabilities(model.capabilities),
    )


def _capabilities(model: model_pb2.Capabilities) -> catalog_pb2.ModelCapabilities:
    yes, no = (catalog_pb2.CapabilitySupport(supported=supported) for supported in (True, False))
    effort = yes if model.reasoning_effort else no
    thinks = yes if model.reasoning else no
    types = catalog_pb2.ThinkingTypes(
        adaptive=thinks,
        between_tools=no,
        disabled=yes if model.reasoning_switch or not model.reasoning else no,
        enabled=thinks,
    )
    return catalog_pb2.ModelCapabilities(
        batch=no,
        citations=no,
        code_execution=no,
        context_management=no,
        effort=catalog_pb2.EffortCapability(
            supported=effort.supported, low=effort, medium=effort, high=effort, xhigh=effort, max=effort
        ),
        image_input=yes if model.max_images else no,
        pdf_input=yes if model.max_documents else no,
        server_tools=catalog_pb2.ServerToolsCapability(code_execution=no, web_search=no),
        structured_outputs=yes if model.structured_outputs else no,
        thinking=catalog_pb2.ThinkingCapability(supported=thinks.supported, types=types),
    )


def _file(media: media_pb2.Media) -> catalog_pb2.FileMetadata:
    return catalog_pb2.FileMetadata(
        id=media.upload_id,
        filename=media.filename,
        mime_type=mimetypes.guess_type(media.filename)[0] or "application/octet-stream",
        size_bytes=media.size_bytes,
        created_at=_time(media.created_at),
        expires_at=_time(media.expires_at),
        downloadable=True,
    )


def _time(seconds: int) -> str:
    """Returns a time since 1970-01-01 UTC in RFC 3339's form."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
