"""ModelService: the names, limits and capabilities of the one served model and of its adapters."""

from collections.abc import Callable

from glimpse.media.kind import MediaKind
from glimpse.server.call.context import CallContext
from glimpse.server.parse.chat import check_bounds
from glimpse.server.render.chat import MODALITIES
from glimpse.server.served_model import ServedModel
from glimpse.v1 import model_pb2


class ModelHandlers:
    """Methods of ModelService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(self, model: ServedModel, max_model_len: Callable[[], int], created: int) -> None:
        """Makes them.

        Args:
            max_model_len: returns the context window, which is final once the model is loaded.
            created: when the server started to serve the model, in seconds since the Unix epoch.
        """
        self._model = model
        self._max_model_len = max_model_len
        self._created = created
        self._capabilities = model_pb2.Capabilities(
            streaming=True,
            tools=model.supports_tools,
            structured_outputs=True,
            logprobs=True,
            reasoning_effort=model.reasoning.has_effort,
            reasoning=model.reasoning.is_parsed,
            reasoning_switch=model.reasoning.has_switch or model.reasoning.has_effort,
            max_choices=128,
            max_images=model.max_media.get(MediaKind.IMAGE, 0),
            max_videos=model.max_media.get(MediaKind.VIDEO, 0),
            max_audios=model.max_media.get(MediaKind.AUDIO, 0),
            max_documents=model.max_media.get(MediaKind.DOCUMENT, 0),
            grounding=bool(model.grounding),
        )
        self._modalities = [
            model_pb2.MODALITY_TEXT,
            *(MODALITIES[kind] for kind in model.max_media if kind in MODALITIES),
        ]

    async def list_models(
        self, _request: model_pb2.ListModelsRequest, _call: CallContext
    ) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(data=map(self.describe, (*self._model.names, *self._model.adapters())))

    async def get_model(self, request: model_pb2.GetModelRequest, _call: CallContext) -> model_pb2.GetModelResponse:
        check_bounds(request)
        return model_pb2.GetModelResponse(model=self.describe(self._model.check_name(request.model)))

    def describe(self, name: str) -> model_pb2.Model:
        """Returns a model by its name."""
        return model_pb2.Model(
            id=name,
            parent=self._model.names[0] if self._model.adapter_of(name) else None,
            created=self._created,
            owned_by="glimpse",
            max_model_len=self._max_model_len(),
            input_modalities=self._modalities,
            output_modalities=[model_pb2.MODALITY_TEXT],
            capabilities=self._capabilities,
        )
