"""Methods of ModelService that load and unload LoRA adapters."""

import hashlib
from pathlib import Path

import structlog

from glimpse.engine.client.engine import Engine
from glimpse.engine.errors import EngineError, EngineErrorCode
from glimpse.engine.protocol.messages import LoadAdapter, UnloadAdapter
from glimpse.identity.errors import PermissionDeniedError
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest, ModelNotFoundError
from glimpse.server.generation.engine_failures import check_end, check_ready
from glimpse.server.parse.chat import check_bounds
from glimpse.server.served_model import ServedModel
from glimpse.server.services.models import ModelHandlers
from glimpse.v1 import model_pb2

_MOST_NAME_CHARACTERS = 256

_log = structlog.get_logger(__name__)


class AdapterHandlers:
    """Load and unload adapters. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(self, models: ModelHandlers, model: ServedModel, engine: Engine, *, folder: str) -> None:
        """`folder`: absolute path of that below which adapters may be; empty: none may be loaded."""
        self._models = models
        self._model = model
        self._engine = engine
        self._folder = folder

    async def load(self, request: model_pb2.LoadAdapterRequest, call: CallContext) -> model_pb2.LoadAdapterResponse:
        check_bounds(request)
        path, name = self._check_allowed(call) / request.lora_path, self._check_new(request)
        message = LoadAdapter(
            request_id=self._engine.unique_id(call.request_id),
            digest=hashlib.blake2b(str(path).encode(errors="surrogateescape"), digest_size=16).digest(),
            name=name,
            path=str(path),
            in_place=request.load_inplace,
        )
        try:
            await self._change(message, call)
        except EngineError as error:
            if error.code is not EngineErrorCode.UNSUPPORTED:
                raise
            self._check_new(request)  # of two at once that load the same name, the engine refuses one
            raise InvalidRequest("lora_path", error.message) from error
        return model_pb2.LoadAdapterResponse(model=self._models.describe(name))

    async def unload(
        self, request: model_pb2.UnloadAdapterRequest, call: CallContext
    ) -> model_pb2.UnloadAdapterResponse:
        check_bounds(request)
        self._check_allowed(call)
        name, adapters = request.lora_name, tuple(self._model.adapters())
        if name not in adapters:
            raise ModelNotFoundError(name, adapters)
        await self._change(UnloadAdapter(request_id=self._engine.unique_id(call.request_id), name=name), call)
        return model_pb2.UnloadAdapterResponse(id=name, deleted=True)

    def _check_allowed(self, call: CallContext) -> Path:
        """Returns the folder below which adapters may be."""
        if not call.is_admin:
            message = "LoRA adapters can only be loaded and unloaded with an admin key."
            raise PermissionDeniedError(message, "permission_denied")
        if not self._folder:
            raise InvalidRequest(
                "",
                "expected a server that loads and unloads LoRA adapters (--allowed-lora-path), got one without",
                "unsupported",
            )
        return Path(self._folder)

    def _check_new(self, request: model_pb2.LoadAdapterRequest) -> str:
        """Returns the name of an adapter to load."""
        name = request.lora_name
        if len(name) > _MOST_NAME_CHARACTERS or not name.isprintable():
            raise InvalidRequest("lora_name", f"expected at most {_MOST_NAME_CHARACTERS} printable characters")
        if name in self._model.names:
            raise InvalidRequest("lora_name", f"expected a name that the model does not have, got {name!r}")
        if name in self._model.adapters() and not request.load_inplace:
            raise InvalidRequest(
                "lora_name", f"expected a name without an adapter, got {name!r}; load_inplace replaces that"
            )
        return name

    async def _change(self, message: LoadAdapter | UnloadAdapter, call: CallContext) -> None:
        """Waits until the engine has done it, and logs who asked for it."""
        check_ready(self._engine)
        call.ticket.end_preparing()  # it may take long, and others can be prepared meanwhile
        what = type(message).__name__
        try:
            check_end(self._engine, await self._engine.change_adapters(message))
        except EngineError as error:
            _log.warning(
                "adapter_refused", request=what, adapter=message.name, tenant=call.tenant.name, why=error.message
            )
            raise
        _log.info("adapter_changed", request=what, adapter=message.name, tenant=call.tenant.name)
