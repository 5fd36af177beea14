"""Adapters that are loaded while the engine serves: into host memory beside steps, then between two of them."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from glimpse.engine.checkpoint.lora import read_adapter
from glimpse.engine.errors import CheckpointError, OutOfDeviceMemoryError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.loading.adapters.load_adapters import AdapterLoader, StagedAdapter
from glimpse.engine.worker.parallel.ranks import Ranks


class RankAdapters:
    """The adapters of one rank."""

    def __init__(self, config: EngineConfig, loader: AdapterLoader, adapters: Adapters) -> None:
        self._config = config
        self._loader = loader
        self._adapters = adapters
        self._staged: StagedAdapter | None = None

    def stage(self, name: str, path: str) -> bytes:
        """Reads an adapter; blocks, and may run beside steps. Returns its digest. Raises CheckpointError."""
        adapter = read_adapter(name, path, self._config)
        self._staged = self._loader.load(adapter, max_rank=self._config.max_lora_rank)
        return self._staged.digest

    def put(self, digest: bytes) -> None:
        """See `AdapterStore.put`."""
        staged, self._staged = self._staged, None
        if staged is not None and staged.digest == digest:
            try:
                self._loader.put(staged)
            except torch.OutOfMemoryError as error:
                raise OutOfDeviceMemoryError from error

    def remove(self, digest: bytes) -> None:
        """See `AdapterStore.remove`."""
        self._adapters.remove(digest)


class EngineAdapters:
    """The `AdapterStore` of an engine."""

    def __init__(self, own: RankAdapters, ranks: Ranks | None) -> None:
        """
        Args:
            own: those of rank 0.
            ranks: the other ranks; None: there are none.
        """
        self._own = own
        self._ranks = ranks
        self._thread = ThreadPoolExecutor(1, "adapters")

    def stage(self, name: str, path: str) -> Future[bytes]:
        if self._ranks is not None:
            self._ranks.stage_adapter(name, path)
        return self._thread.submit(self._stage, name, path)

    def put(self, digest: bytes) -> None:
        try:
            self._own.put(digest)
        except OutOfDeviceMemoryError:
            digest = b""
            raise
        finally:
            if self._ranks is not None:
                self._ranks.put_adapter(digest)

    def remove(self, digest: bytes) -> None:
        self._own.remove(digest)
        if self._ranks is not None:
            self._ranks.remove_adapter(digest)

    def _stage(self, name: str, path: str) -> bytes:
        try:
            digest = self._own.stage(name, path)
        finally:
            others = [] if self._ranks is None else self._ranks.staged_adapters()
        for other in others:
            if other.digest != digest:
                raise CheckpointError(other.message or f"adapter {name!r} changed while it was read; load it again")
        return digest
