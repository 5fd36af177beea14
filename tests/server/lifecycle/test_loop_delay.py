"""The event loop's delay is measured."""

import asyncio
import time

from glimpse.server.lifecycle.watches import watch_loop_delay


def test_reports_how_long_the_loop_was_blocked() -> None:
    async def run() -> list[float]:
        delays: list[float] = []
        watch = asyncio.create_task(watch_loop_delay(delays.append, interval_seconds=0.001))
        await asyncio.sleep(0.01)
        time.sleep(0.2)  # noqa: ASYNC251 - blocks the loop, as bad code would
        await asyncio.sleep(0.01)
        watch.cancel()
        return delays

    delays = asyncio.run(run())
    assert len(delays) > 1
    assert max(delays) >= 0.15
