"""The client of an engine process that serves one front end."""

import math
from collections.abc import Callable, Sequence

from glimpse.engine.client.engine import Engine
from glimpse.engine.client.supervisor import ENGINE_COMMAND, EngineListener, EngineState, EngineSupervisor
from glimpse.engine.client.suspects import Work
from glimpse.engine.errors import EngineError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import Cancel, Loading, Ready, Request, StepStats
from glimpse.frames import encoded


class EngineClient(Engine):
    """An engine process of its own. `on_loading` is called with the progress of each load; see `Engine`."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        on_state: Callable[[EngineState, str], None] | None = None,
        on_loading: Callable[[Loading], None] | None = None,
        on_stats: Callable[[StepStats], None] | None = None,
        max_silence_seconds: float = math.inf,
        keep_spare: bool = False,
    ) -> None:
        """`max_silence_seconds` and `keep_spare` are as in `EngineSupervisor`."""
        super().__init__(on_stats=on_stats)
        self._on_loading = on_loading or _ignore
        listener = EngineListener(
            on_state=on_state or _ignore,
            on_loading=self._load,
            on_step=self._deliver,
            on_lost=self._end_all,
        )
        self._supervisor = EngineSupervisor(
            config, listener, command=command, max_silence_seconds=max_silence_seconds, keep_spare=keep_spare
        )

    @property
    def pid(self) -> int | None:
        """Process id of the engine. None while it is not running."""
        return self._supervisor.pid

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def ready(self) -> Ready | None:
        return self._supervisor.ready

    @property
    def retry_after_seconds(self) -> float | None:
        return self._supervisor.retry_after_seconds

    async def start(self) -> Ready:
        return await self._supervisor.start()

    async def stop(self) -> None:
        """Ends the engine. Requests in flight end as CANCELLED. May be called at any time, and repeatedly.

        A running step has time to finish, unless `stop` is called a second time.
        """
        await self._supervisor.stop()

    def _load(self, loading: Loading) -> None:
        self.loading = loading
        self._on_loading(loading)

    def _send(self, message: Request | Cancel) -> EngineError | None:
        body = encoded(message)
        if isinstance(message, Cancel):
            self._supervisor.send(body)
            return None
        work = Work(request_ids=message.request_ids, digest=message.digest, flow=message.flow or message.request_id)
        return self._supervisor.submit(body, work)


def _ignore(*_: object) -> None:
    pass
