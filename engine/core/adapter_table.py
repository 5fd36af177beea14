"""The LoRA adapters that requests may have: they are loaded and unloaded between steps, while others are computed.

An adapter that is unloaded or replaced takes no new requests, and goes when the last of its requests has ended.
"""

import logging
from collections import deque
from collections.abc import Mapping, Set
from concurrent.futures import Future, wait
from typing import Protocol

from glimpse.engine.errors import CheckpointError, EngineError, EngineErrorCode, OutOfDeviceMemoryError
from glimpse.engine.protocol.messages import (
    FinishReason,
    LoadAdapter,
    LoadedAdapter,
    TokenEvent,
    UnloadAdapter,
    error_event,
)

_WAIT_SECONDS = 0.01
"""How long a step with nothing else to do waits for an adapter. New messages from the caller wait as long."""
SPARE_SLOTS = 1
"""For an adapter whose last requests run on while another takes its place."""

_log = logging.getLogger(__name__)


class AdapterStore(Protocol):
    """The adapters of all ranks, by their digests. One at a time is loaded."""

    def stage(self, name: str, path: str) -> Future[bytes]:
        """Begins to read an adapter in the background; the result is its digest.

        The future raises CheckpointError if the adapter does not fit the model.
        """
        ...

    def put(self, digest: bytes) -> None:
        """Makes the staged adapter usable; drops it if its digest is another one.

        Raises:
            OutOfDeviceMemoryError: it does not fit into the memory of the device.
        """
        ...

    def remove(self, digest: bytes) -> None:
        """Frees an adapter that no sequence has."""
        ...


class AdapterTable:
    """The adapters of an engine by name, and the requests to load some."""

    def __init__(
        self, store: AdapterStore, *, digests: dict[str, bytes], paths: Mapping[str, str], max_adapters: int
    ) -> None:
        """
        Args:
            digests: of the adapters that are loaded, by name. Kept up to date.
            paths: their folders.
            max_adapters: most at a time.
        """
        self.digests = digests
        self.loaded = {name: LoadedAdapter(digest=digest, path=paths[name]) for name, digest in digests.items()}
        self.has_changed = False
        """`loaded` has changed since this was set to False."""
        self._store = store
        self._max_adapters = max_adapters
        self._queue = deque[LoadAdapter]()
        self._staging: tuple[LoadAdapter, Future[bytes]] | None = None  # what is read, and the request for it
        self._leaving = set[bytes]()  # digests without a name, of which requests may run

    @property
    def is_loading(self) -> bool:
        """`advance` is to be called."""
        return bool(self._queue)

    @property
    def is_leaving(self) -> bool:
        """`release` is to be called."""
        return bool(self._leaving)

    def restore(self, paths: Mapping[str, str]) -> None:
        """Loads adapters by name. One that cannot be loaded is left out, which the log tells."""
        for name, path in paths.items():
            self.load(LoadAdapter(request_id="", name=name, path=path))
            while self.is_loading:
                for event in self.advance(may_wait=True):
                    if event.finish is FinishReason.ERROR:
                        _log.error("the adapter %r is not served any more: %s", name, event.message)

    def load(self, request: LoadAdapter) -> None:
        """Queues a request, which `advance` ends."""
        self._queue.append(request)

    def unload(self, request: UnloadAdapter) -> TokenEvent:
        """Ends a request at once: the adapter takes no more requests."""
        if self.loaded.pop(request.name, None) is None:
            return error_event(
                request.request_id,
                EngineError(EngineErrorCode.NO_ADAPTER, f"the engine has no adapter {request.name!r}"),
            )
        self.has_changed = True
        self._leave(self.digests.pop(request.name))
        return TokenEvent(request_id=request.request_id, finish=FinishReason.STOP)

    def advance(self, *, may_wait: bool) -> list[TokenEvent]:
        """Begins and ends loads. Returns the last events of their requests.

        Args:
            may_wait: there is nothing else to do: wait a moment for an adapter.
        """
        events: list[TokenEvent] = []
        while self._queue:
            request = self._queue[0]
            if self._staging is None and (refusal := self._refusal(request)) is not None:
                events.append(error_event(self._queue.popleft().request_id, refusal))
                continue
            reason, staging = self._staging = self._staging or (request, self._store.stage(request.name, request.path))
            if may_wait and not events:
                wait([staging], timeout=_WAIT_SECONDS)
            if not staging.done():
                break
            self._staging = None
            if reason is not request:  # it was cancelled
                self._store.put(b"")
                continue
            self._queue.popleft()
            events.append(self._end(request, staging))
        return events

    def release(self, in_use: Set[bytes]) -> None:
        """Frees the adapters that are unloaded, except for those of these digests."""
        for digest in self._leaving - in_use:
            self._store.remove(digest)
            self._leaving.discard(digest)

    def end_all(self) -> list[TokenEvent]:
        """Returns the last events of all requests, which end as cancelled."""
        events = [TokenEvent(request_id=each.request_id, finish=FinishReason.CANCELLED) for each in self._queue]
        self._queue.clear()
        return events

    def _refusal(self, request: LoadAdapter) -> EngineError | None:
        if request.name in self.loaded:
            if request.in_place:
                return None
            message = f"expected a name without an adapter, got {request.name!r}; load_inplace replaces it"
            return EngineError(EngineErrorCode.UNSUPPORTED, message)
        if len(self.loaded) >= self._max_adapters:
            message = f"expected at most {self._max_adapters} adapters (--max-loras), got one more; unload one"
            return EngineError(EngineErrorCode.OVERLOADED, message)
        return None

    def _end(self, request: LoadAdapter, staging: Future[bytes]) -> TokenEvent:
        try:
            self._put(request, staging.result())
        except Exception as error:
            self._store.put(b"")
            return error_event(request.request_id, _failure(error))
        return TokenEvent(request_id=request.request_id, finish=FinishReason.STOP)

    def _put(self, request: LoadAdapter, digest: bytes) -> None:
        present = {*self.digests.values(), *self._leaving}
        if digest not in present and len(present) >= self._max_adapters + SPARE_SLOTS:
            message = "requests still use adapters that were unloaded or replaced; retry later"
            raise EngineError(EngineErrorCode.OVERLOADED, message)
        self._store.put(digest)
        self._leaving.discard(digest)
        before, self.digests[request.name] = self.digests.get(request.name), digest
        self.loaded[request.name] = LoadedAdapter(digest=digest, path=request.path)
        self.has_changed = True
        if before is not None:
            self._leave(before)

    def _leave(self, digest: bytes) -> None:
        if digest not in self.digests.values():
            self._leaving.add(digest)


def _failure(error: Exception) -> EngineError:
    match error:
        case EngineError():
            return error
        case CheckpointError():
            return EngineError(EngineErrorCode.UNSUPPORTED, str(error))
        case OutOfDeviceMemoryError():
            return EngineError(EngineErrorCode.OUT_OF_MEMORY, "the adapter does not fit into the device's memory")
        case _:
            _log.error("an adapter cannot be loaded", exc_info=error)
            return EngineError(EngineErrorCode.INTERNAL, "the adapter cannot be loaded")
