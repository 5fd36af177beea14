"""Announcements among replicas: members of a sorted set, by the store's times at which they were announced."""

from typing import Any

from glimpse.media.shared.link import Client

_OVERLAP_MICROSECONDS = 60_000_000
"""A replica that takes a failed Redis' place may lack what was announced last, and announce at those times again."""


class Announcements:
    """The announcements of one sorted set that this replica has not read yet."""

    def __init__(self, key: str) -> None:
        """`key`: the set's."""
        self._key = key
        self.last = 0
        """The store's time of the latest that was read."""
        self._from = 0
        """What is announced at this time or later may be unread."""
        self._read: dict[bytes, float] = {}
        """Announcements read last, with their times."""

    async def read_new(self, client: Client) -> dict[str, int]:
        """Returns what was announced since the last time, each announcement once, with its time."""
        found: Any = await client.zrangebyscore(self._key, self._from, "+inf", withscores=True)
        new = {announcement: time for announcement, time in found if self._read.get(announcement) != time}
        self.last = max([self.last, *map(int, new.values())])
        self._from = self.last
        if new:
            recent = self.last - _OVERLAP_MICROSECONDS
            self._read = {each: time for each, time in (self._read | new).items() if time >= recent}
        return {announcement.decode(): int(time) for announcement, time in new.items()}

    def rewind(self) -> None:
        """Looks for unread announcements of the last minute: Redis was away and may have lost what it had last."""
        self._from = self.last - _OVERLAP_MICROSECONDS
