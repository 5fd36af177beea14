"""Loads and validates embeddings from requests, off the event loop."""

import asyncio

from glimpse.media.embeddings.embeddings import Embedding, EmbeddingPart, EmbeddingSpec, about, make_embedding
from glimpse.media.embeddings.tensor import Tensor
from glimpse.media.embeddings.tensor_file import SerializedTensor, TensorSource, is_torch_file, read_safetensors
from glimpse.media.embeddings.torch_files import TorchFileLoader
from glimpse.media.kind import MediaKind


class EmbeddingLoader:
    """Loads the embeddings of all requests of one event loop."""

    def __init__(self, *, spec: EmbeddingSpec, torch_files: TorchFileLoader) -> None:
        """
        Args:
            spec: What the checkpoint accepts.
            torch_files: Loads files of `torch.save`. Closed by `close`.
        """
        self._spec = spec
        self._torch_files = torch_files

    async def load(self, kind: MediaKind, embeddings: TensorSource, grid_thw: TensorSource | None) -> Embedding:
        """Loads embeddings. The arguments are those of `make_embedding`.

        Raises:
            EmbeddingError: The embeddings cannot be used.
        """
        with about(kind, EmbeddingPart.GRID_THW):
            grid = None if grid_thw is None else await self._tensor(grid_thw)
        with about(kind, EmbeddingPart.EMBEDDINGS):
            tensor = await self._tensor(embeddings)
        return await asyncio.to_thread(make_embedding, kind, tensor, grid, self._spec)

    async def close(self) -> None:
        """Closes the loader of files."""
        await self._torch_files.close()

    async def _tensor(self, source: TensorSource) -> Tensor:
        match source:
            case Tensor():
                return source
            case SerializedTensor(data=data):
                return await self._torch_files.load(data) if is_torch_file(data) else read_safetensors(data)
