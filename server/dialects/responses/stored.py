"""Stored responses: what later requests continue, refer to, or ask for again.

They are values of the store that uploads have: by tenant, else by client, bounded in bytes and time, shared by servers
with a media store. Their media are values of their own, so that a later turn reads them only where no cache has them.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import structlog

from glimpse.media.cache.media_file import MediaFile
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.shared.keys import share_of, tenant_of
from glimpse.media.sources.uploads import IncomingUpload, Part, Upload, Uploads
from glimpse.openai.v1 import responses_pb2
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.dialects.responses.response import ITEM_PREFIXES
from glimpse.server.dialects.responses.stored_media import attach, detach, detached
from glimpse.server.errors import InvalidRequest

_READ_SECONDS = 30.0
"""Limit on reading a response from the shared store."""
_NOT_FOUND = "response_not_found"
_MAX_TURNS = 1000
"""The most responses of a conversation."""

_KEY = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
"""Keys that ids have; not the gateway's `-`, which stands for none."""

_log = structlog.get_logger(__name__)


class Recording:
    """A response that is being stored: first what was asked, in the end the answer."""

    def __init__(self, values: Uploads, incoming: IncomingUpload, call: CallContext) -> None:
        self._values = values
        self._incoming: IncomingUpload | None = incoming
        self._call = call
        self._media: list[Part] = []

    async def begin(self, request: responses_pb2.CreateResponseRequest) -> None:
        """Records what is asked. Where there is no room, nothing is stored."""
        name, share = response_name(self._call), _share(self._call)
        asked, self._media = await self._call.parse(_asked, request, name, share)
        self._append(asked, num_media_bytes=sum(len(part.file.data) for part in self._media))

    async def finish(self, response: responses_pb2.Response) -> None:
        """Stores the response with its id. Where it cannot be stored, the client is told if it still can be."""
        size = response.ByteSize()
        self._append(await run_sized(self._call.client, size, _answered, response))
        if self._incoming is None:
            return
        tenant = self._call.tenant
        try:
            await self._values.store(
                tenant.namespace(""),
                await self._incoming.finish(),
                ttl_seconds=None,
                max_tenant_bytes=tenant.limits.max_upload_bytes,
                handle=response.id,
                parts=self._media,
            )
        except MediaError as error:
            self._drop(error)

    def _append(self, part: bytes, *, num_media_bytes: int = 0) -> None:
        """Appends a part: messages one after another are one. The event loop alone counts memory."""
        if self._incoming is not None:
            try:
                self._incoming.hold(num_media_bytes)
                self._incoming.append(part)
            except MediaError as error:
                self._drop(error)

    def _drop(self, error: MediaError) -> None:
        self._incoming, self._media = None, []
        self._call.ignored_fields.append("store")
        _log.warning("response_not_stored", reason=error.code.value)


class StoredResponses:
    """The responses of all tenants, of which each sees its own."""

    def __init__(self, values: Uploads) -> None:
        """`values`: have them, by their ids."""
        self._values = values

    @contextmanager
    def recording(self, request: responses_pb2.CreateResponseRequest, call: CallContext) -> Generator[Recording | None]:
        """Yields what records the response to a request; None if it is not to be stored."""
        is_asked = request.store or not request.HasField("store")
        if not (is_asked and self._values.is_enabled):
            if request.store:
                call.ignored_fields.append("store")
            yield None
            return
        with self._values.receive(
            client=call.client, share=call.tenant.media, max_tenant_bytes=call.tenant.limits.max_upload_bytes
        ) as incoming:
            yield Recording(self._values, incoming, call)

    async def get(
        self, response_id: str, call: CallContext, field: str = "response_id"
    ) -> responses_pb2.StoredResponse:
        """Returns a response. Raises InvalidRequest, about the field that has its id."""
        upload, file = await self._read(response_id, call, field)
        call.body.reserve(upload.num_bytes)  # until the media of the request are loaded, as if it had sent all this
        return await run_sized(call.client, len(file.data), responses_pb2.StoredResponse.FromString, file.data)

    async def _read(self, handle: str, call: CallContext, field: str) -> tuple[Upload, MediaFile]:
        """Returns a value. Raises InvalidRequest, about the field that has its handle."""
        namespace = call.tenant.namespace("")
        try:
            upload = await self._values.known(namespace, handle)
            file = await self._values.file(namespace, handle, max_bytes=upload.num_bytes, seconds=_READ_SECONDS)
        except MediaError as error:
            if error.code is MediaErrorCode.NOT_CACHED:
                raise self._not_found(handle, field) from None
            raise InvalidRequest(field, "the media store does not answer; try again", error.code) from None
        return upload, file

    async def remove(self, response_id: str, call: CallContext) -> None:
        """Removes a response. Raises InvalidRequest."""
        try:
            existed = await self._values.remove(call.tenant.namespace(""), response_id)
        except MediaError as error:
            raise InvalidRequest("response_id", "the media store does not answer; try again", error.code) from None
        if not existed:
            raise self._not_found(response_id, "response_id")

    async def history(
        self, request: responses_pb2.CreateResponseRequest, call: CallContext
    ) -> Sequence[responses_pb2.StoredResponse]:
        """Returns the responses before a request, the first one first. Raises InvalidRequest."""
        field = "previous_response_id"
        return [] if not (last := request.previous_response_id) else await self._conversation(last, call, field)

    async def input_items(self, response_id: str, call: CallContext) -> list[responses_pb2.ResponseItem]:
        """Returns the items that a response answers, the first one first: its own and those of all turns before it.

        Raises InvalidRequest: the response, or one of an earlier turn, is not stored.
        """
        *before, last = await self._conversation(response_id, call, "response_id")
        return [*(item for turn in before for item in (*turn.input, *turn.response.output)), *last.input]

    async def _conversation(
        self, response_id: str, call: CallContext, field: str
    ) -> list[responses_pb2.StoredResponse]:
        """Returns a response and those before it, the first one first. Raises InvalidRequest, about this field."""
        found = [await self.get(response_id, call, field)]
        while earlier := found[-1].response.previous_response_id:
            if len(found) == _MAX_TURNS:
                raise InvalidRequest(field, f"expected a conversation of at most {_MAX_TURNS} responses")
            try:
                found.append(await self.get(earlier, call, field))
            except InvalidRequest as error:
                if error.reason != _NOT_FOUND:
                    raise
                message = (
                    f"expected a conversation of which each response is stored, got '{response_id[:64]}', of which the"
                    f" earlier '{earlier[:64]}' was deleted or has expired; send its items in 'input'"
                )
                raise InvalidRequest(field, message, _NOT_FOUND) from None
        return found[::-1]

    async def resolve(self, request: responses_pb2.CreateResponseRequest, call: CallContext) -> None:
        """Puts the items that a request refers to in place of its references. Raises InvalidRequest."""
        known: dict[str, dict[str, responses_pb2.ResponseItem]] = {}
        for index, item in enumerate(request.input.items.items):
            if item.WhichOneof("item") != "item_reference":
                continue
            name, field = item.item_reference.id, f"input.items.items[{index}].item_reference.id"
            response_id = f"resp_{name.partition('_')[2].rpartition('_')[0]}"
            if response_id not in known:
                try:
                    stored = await self.get(response_id, call, field)
                except InvalidRequest as error:
                    raise self._not_found(name, field) if error.reason == _NOT_FOUND else error from None
                known[response_id] = {item_id(each): each for each in (*stored.input, *stored.response.output)}
            if name not in known[response_id]:
                raise self._not_found(name, field)
            item.CopyFrom(known[response_id][name])
            await self._attach([item], call, field)  # the new response has media of its own

    async def _attach(self, items: Sequence[responses_pb2.ResponseItem], call: CallContext, field: str) -> None:
        """Puts the media of stored items into them. Raises InvalidRequest, about this field."""
        media: dict[str, tuple[Upload, MediaFile]] = {}
        num_bytes = 0
        for handle in detached(items):
            upload, file = media.get(handle) or await self._read(handle, call, field)
            media[handle] = upload, file
            call.body.reserve(2 * len(file.data))
            num_bytes += len(file.data)
        await run_sized(call.client, num_bytes, attach, items, media)

    def _not_found(self, name: str, field: str) -> InvalidRequest:
        if not self._values.is_enabled:
            return InvalidRequest(field, "the server stores no responses (--response-store-bytes 0)", "unsupported")
        message = f"expected what a stored response has, got '{name[:64]}'; it may have expired"
        return InvalidRequest(field, message, _NOT_FOUND)


def response_name(call: CallContext) -> str:
    """Returns the ids of a call's response and its items, without their prefixes.

    It ends with the call's routing key, by which the gateway finds the server of a later call about the response.
    """
    name = f"{call.request_id}-{share}" if (share := _share(call)) else call.request_id
    return f"{name}--{call.routing_key}" if _KEY.fullmatch(call.routing_key) else name


def _share(call: CallContext) -> str:
    """Returns what the names of a client's values end with; empty if its tenant says whose they are."""
    return "" if tenant_of(call.tenant.namespace("")) else share_of(call.client)


def item_id(item: responses_pb2.ResponseItem) -> str:
    """Returns the id of an item; empty if it has none."""
    return getattr(item, item.WhichOneof("item") or "message").id


def _asked(request: responses_pb2.CreateResponseRequest, name: str, share: str) -> tuple[bytes, list[Part]]:
    """Returns what is stored of a request, and its media. The request has no media any more."""
    media = detach(request.input.items.items, share)
    stored = responses_pb2.StoredResponse(input=request.input.items.items)
    if request.input.HasField("text"):
        message = stored.input.add().message
        message.role = responses_pb2.RESPONSE_ROLE_USER
        message.content.add().input_text.text = request.input.text
    for index, item in enumerate(stored.input):
        _complete(item, f"{name}_i{index}")
    return stored.SerializeToString(), media


def _answered(response: responses_pb2.Response) -> bytes:
    return responses_pb2.StoredResponse(response=response).SerializeToString()


def _complete(item: responses_pb2.ResponseItem, name: str) -> None:
    """Adds what stored items have: an id, a status, and text of the model as such."""
    kind = item.WhichOneof("item")
    if kind not in ITEM_PREFIXES:
        return
    own = getattr(item, kind)
    if not own.id:
        own.id = f"{ITEM_PREFIXES[kind]}_{name}"
    own.status = own.status or responses_pb2.RESPONSE_STATUS_COMPLETED
    if kind == "message" and item.message.role == responses_pb2.RESPONSE_ROLE_ASSISTANT:
        for part in item.message.content:
            if part.HasField("input_text"):
                part.output_text.text = part.input_text.text
