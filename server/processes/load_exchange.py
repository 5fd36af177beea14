"""Sends each front end the load of the others.

It needs that to estimate waits, to report the load of the whole server, and to limit what a tenant's media occupy.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from glimpse.server.processes.messages import FrontEndLoad

INTERVAL_SECONDS = 0.2
"""Between two looks at whether a load has changed."""

NO_LOAD = FrontEndLoad(waiting={}, rpcs_per_second=0.0, failures_per_second=0.0)


class LoadExchange:
    """The loads of front ends, by number."""

    def __init__(self) -> None:
        self._loads: dict[int, FrontEndLoad] = {}

    def set(self, number: int, load: FrontEndLoad) -> None:
        self._loads[number] = load

    def remove(self, number: int) -> None:
        """A front end is gone."""
        self._loads.pop(number, None)

    def of_others(self, number: int) -> FrontEndLoad:
        """Returns the sum of the loads of all front ends but this one."""
        others = [load for other, load in self._loads.items() if other != number]
        waiting, media_bytes = Counter[str](), Counter[str]()
        for load in others:
            waiting.update(load.waiting)
            media_bytes.update(load.media_bytes)
        return FrontEndLoad(
            waiting=waiting,
            media_bytes=media_bytes,
            rpcs_per_second=sum(load.rpcs_per_second for load in others),
            failures_per_second=sum(load.failures_per_second for load in others),
        )


async def send_changes(load: Callable[[], FrontEndLoad], send: Callable[[FrontEndLoad], None]) -> None:
    """Calls `send` with the load whenever it has changed, until it is cancelled."""
    sent = NO_LOAD
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        if (now := load()) != sent:
            sent = now
            send(now)
