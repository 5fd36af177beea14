"""ModelService: the names, limits and capabilities of the one served model."""

import time
from collections.abc import Callable, Mapping

import grpc.aio

from glimpse.media.kind import MediaKind
from glimpse.server.parse.chat import check_bounds
from glimpse.server.rpc.errors import ModelNotFoundError
from glimpse.v1 import model_pb2

Context = grpc.aio.ServicerContext[object, object]

_MODALITIES = {
    MediaKind.IMAGE: model_pb2.MODALITY_IMAGE,
    MediaKind.VIDEO: model_pb2.MODALITY_VIDEO,
    MediaKind.AUDIO: model_pb2.MODALITY_AUDIO,
}


class ServedModel:
    """The model that is served, and its names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        """At least one. Responses use the first if the request names no model."""
        self.created = int(time.time())

    def check_name(self, name: str) -> str:
        """Returns the model name for the response. Raises ModelNotFoundError."""
        if not name:
            return self.names[0]
        if name not in self.names:
            raise ModelNotFoundError(name, self.names)
        return name


class ModelHandlers:
    """Methods of ModelService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    def __init__(
        self,
        *,
        model: ServedModel,
        max_model_len: Callable[[], int],
        max_media: Mapping[MediaKind, int],
        supports_tools: bool,
        supports_reasoning_effort: bool,
    ) -> None:
        """
        Args:
            model: The served model.
            max_model_len: Returns the context window, which is final once the model is loaded.
            max_media: Kinds of media that the model supports, with the most per request.
            supports_tools: The chat template supports tools, and their calls can be parsed.
            supports_reasoning_effort: The chat template uses `reasoning_effort`.
        """
        self._model = model
        self._max_model_len = max_model_len
        self._capabilities = model_pb2.Capabilities(
            streaming=True,
            tools=supports_tools,
            structured_outputs=True,
            logprobs=True,
            reasoning_effort=supports_reasoning_effort,
            max_choices=128,
            max_images=max_media.get(MediaKind.IMAGE, 0),
            max_videos=max_media.get(MediaKind.VIDEO, 0),
            max_audios=max_media.get(MediaKind.AUDIO, 0),
        )
        self._modalities = [model_pb2.MODALITY_TEXT, *(_MODALITIES[kind] for kind in max_media)]

    async def list_models(
        self, _request: model_pb2.ListModelsRequest, _context: Context
    ) -> model_pb2.ListModelsResponse:
        return model_pb2.ListModelsResponse(data=map(self._render, self._model.names))

    async def get_model(self, request: model_pb2.GetModelRequest, _context: Context) -> model_pb2.GetModelResponse:
        check_bounds(request)
        return model_pb2.GetModelResponse(model=self._render(self._model.check_name(request.model)))

    def _render(self, name: str) -> model_pb2.Model:
        return model_pb2.Model(
            id=name,
            created=self._model.created,
            owned_by="glimpse",
            max_model_len=self._max_model_len(),
            input_modalities=self._modalities,
            output_modalities=[model_pb2.MODALITY_TEXT],
            capabilities=self._capabilities,
        )
