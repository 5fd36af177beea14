"""`glimpse up` with an engine of the tests: `python -m tests.e2e.scripted_glimpse PORT SETTINGS COMMAND…`.

PORT is the gateway's; with "none" it is `glimpse serve`.
"""

import asyncio
import sys

from glimpse.server.lifecycle.logs import configure_logging
from glimpse.server.lifecycle.served_checkpoint import find_checkpoint
from glimpse.server.processes.run import run
from glimpse.server.settings import Settings


async def main() -> None:
    """Serves until SIGTERM."""
    http_port = None if sys.argv[1] == "none" else int(sys.argv[1])
    settings = Settings.model_validate_json(sys.argv[2])
    configure_logging(settings.listen.log_level)
    await run(
        settings,
        find_checkpoint(settings.engine),
        http_port=http_port,
        on_loading=lambda _: None,
        on_ready=lambda *_: None,
        engine_command=sys.argv[3:],
    )


if __name__ == "__main__":
    asyncio.run(main())
