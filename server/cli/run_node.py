"""Runs a node other than node 0 in the foreground: it computes for node 0 and has no ports of its own."""

import asyncio
import sys

from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.weight_files import checkpoint_digest
from glimpse.engine.worker.parallel.node import serve_node
from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.settings import Settings
from glimpse.stop_signals import StopSignals
from glimpse.tasks import first


def run_node(settings: Settings) -> None:
    """Computes until a signal ends it; exits with a message if node 0 refuses this node."""
    configure_logging(settings.listen.log_level)
    try:
        checkpoint = find_checkpoint(settings.engine)
        config = settings.engine.engine_config(checkpoint.path, checkpoint.folders)
        asyncio.run(_serve(config, checkpoint_digest([config.model_path, *config.companions.values()])))
    except CheckpointError as error:
        sys.exit(f"glimpse: {error}")


async def _serve(config: EngineConfig, digest: str) -> None:
    """Raises CheckpointError."""
    signals = StopSignals()
    with signals.catching():
        await first(serve_node(config, digest), signals.stop_requested.wait())
