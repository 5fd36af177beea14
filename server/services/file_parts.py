"""Parts of messages that are uploads of any kind become parts of the upload's own kind, before they are parsed."""

from collections.abc import Iterable

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.prompts import PromptLoader
from glimpse.v1 import content_pb2, rerank_pb2


async def set_kinds(
    messages: Iterable[content_pb2.Message | rerank_pb2.RerankDocument],
    call: CallContext,
    loader: PromptLoader,
    *,
    cache_salt: str,
    field: str = "messages",
) -> None:
    """Changes each part that is an upload of any kind into one of the upload's own kind.

    Args:
        messages: or documents, which have content too.
        call: whose it is. Errors about the parts name what was sent.

    Raises:
        InvalidRequest: an upload is no file of a medium, or not there.
    """
    for path, part in await call.parse(_uploads, messages, field):
        source = f"{path}.file.source.upload_id"
        upload_id = part.file.source.upload_id
        try:
            kind = await loader.upload_kind(upload_id, call.tenant.namespace(cache_salt))
        except MediaError as error:
            raise InvalidRequest(source, error.message, error.code) from error
        if kind is None:
            message = "expected an image, a video, audio or a document, got an upload of another format"
            raise InvalidRequest(source, message, MediaErrorCode.UNSUPPORTED_FORMAT)
        call.adapted |= {f"{path}.{kind}": f"{path}.file", f"{path}.{kind}.source": source}
        getattr(part, kind).source.upload_id = upload_id


def _uploads(
    messages: Iterable[content_pb2.Message | rerank_pb2.RerankDocument], field: str
) -> list[tuple[str, content_pb2.ContentPart]]:
    """Returns the parts that are uploads of any kind, with their paths."""
    return [
        (f"{field}[{index}].content[{place}]", part)
        for index, message in enumerate(messages)
        for place, part in enumerate(message.content)
        if part.WhichOneof("part") == "file" and part.file.source.WhichOneof("source") == "upload_id"
    ]
