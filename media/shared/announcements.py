"""What replicas tell each other: members of a sorted set, by the times at which they were announced."""

from typing import Any

from glimpse.media.shared.link import Client


class Announcements:
    """The announcements of one sorted set that this replica has not heard yet."""

    def __init__(self, key: str) -> None:
        """`key`: the set's."""
        self._key = key
        self._last = 0.0
        """Redis' time of the latest that was heard, in ms since 1970."""
        self._heard_last = set[bytes]()
        """Those of that time."""

    async def hear(self, client: Client) -> list[str]:
        """Returns what was announced since the last time, each announcement once."""
        found: Any = await client.zrangebyscore(self._key, self._last, "+inf", withscores=True)
        heard: list[str] = []
        for announcement, milliseconds in found:
            if milliseconds > self._last:
                self._last, self._heard_last = milliseconds, set()
            if announcement not in self._heard_last:
                self._heard_last.add(announcement)
                heard.append(announcement.decode())
        return heard
