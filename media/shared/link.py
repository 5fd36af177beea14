"""Connection to the Redis that replicas share.

Every command has a time limit. After one fails, further ones fail at once until a probe succeeds, so that a Redis that
is gone or slow delays few requests.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from glimpse.backoff import Backoff
from glimpse.media.shared.address import StoreAddress
from glimpse.media.shared.values import StoreUnavailableError

ResultT = TypeVar("ResultT")
Client = redis.Redis

COMMAND_SECONDS = 2.0
"""Default limit on one command, which transfers at most a chunk."""
PROBE_SECONDS = 1.0
"""Pause between two probes while Redis answers."""
REFUSAL_SECONDS = 60.0
"""Pause between two lines of the log about commands that Redis refuses for the same reason."""
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 5.0
"""Pauses between two attempts to reconnect: doubled each time, less up to a half at random."""
_MAX_COMMANDS = 8
"""Commands in progress, each on a connection of its own; further ones wait."""

_LOST = (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError, ReadOnlyError)
"""Errors after which the connection counts as lost. A Redis that became a replica refuses writes with ReadOnlyError."""

_logger = logging.getLogger(__name__)


class RedisLink:
    """Runs commands on one Redis, for the tasks of one event loop."""

    def __init__(
        self,
        address: StoreAddress,
        *,
        probe: Callable[[Client], Awaitable[object]],
        on_change: Callable[[bool], None],
        name: str = "media store",
        command_seconds: float = COMMAND_SECONDS,
    ) -> None:
        """
        Args:
            probe: Run every second to see whether Redis answers, and whether it takes writes.
            on_change: Called when Redis becomes available (True) or unavailable (False).
        """
        self.is_available = False
        """Whether the last command or probe succeeded."""
        self._address = address
        self._probe = probe
        self._on_change = on_change
        self._name = name
        self._command_seconds = command_seconds
        self._client = _client(address, command_seconds)
        self._slots = asyncio.Semaphore(_MAX_COMMANDS)
        self._lost = asyncio.Event()
        self._tried = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._refused: dict[str, float] = {}
        """By the type of a refusal, when it was last logged: time of the event loop."""

    async def start(self) -> None:
        """Connects, and keeps connecting in the background. Returns after the first attempt, whether it succeeded."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_connected())
        await self._tried.wait()

    async def close(self) -> None:
        """Ends all connections. Idempotent."""
        self.is_available = False
        # Again, because the client may swallow a cancellation that comes in the moment in which a wait of its own ends.
        while self._watch is not None and not self._watch.done():
            self._watch.cancel()
            await asyncio.wait({self._watch}, timeout=1)
        self._watch = None
        await self._client.aclose()

    async def run(self, command: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Runs a command. Raises StoreUnavailableError, at once while Redis is unavailable."""
        if not self.is_available:
            raise StoreUnavailableError
        async with self._place():
            try:
                async with asyncio.timeout(self._command_seconds):
                    return await command(self._client)
            except _LOST as error:
                reason = _describe(error)
            except RedisError as error:
                # The connection works, but not this command: no memory left, or no permission.
                self._log_refusal(error)
                raise StoreUnavailableError from None
        self._change(is_available=False, reason=reason)
        raise StoreUnavailableError

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        """Holds one of the places for commands. Raises StoreUnavailableError if others hold them for too long."""
        try:
            async with asyncio.timeout(self._command_seconds):
                await self._slots.acquire()
        except TimeoutError:  # which says nothing about Redis
            raise StoreUnavailableError from None
        try:
            yield
        finally:
            self._slots.release()

    def _log_refusal(self, error: RedisError) -> None:
        """Logs why commands are refused, once a minute: each request has some."""
        kind, now = type(error).__name__, asyncio.get_running_loop().time()
        if now - self._refused.get(kind, -REFUSAL_SECONDS) >= REFUSAL_SECONDS:
            self._refused[kind] = now
            _logger.warning("the %s refuses commands: %s", self._name, _describe(error))

    async def _keep_connected(self) -> None:
        backoff = Backoff(_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)
        while True:
            reason = await self._try_probe()
            self._change(is_available=reason is None, reason=reason or "")
            self._tried.set()
            if reason is None and not await self._is_lost_within(PROBE_SECONDS):
                backoff.reset()
                continue
            # Also after a command that failed right after a probe that did not: both might go on for ever.
            await asyncio.sleep(backoff.take() * random.uniform(0.5, 1))  # noqa: S311 - no secret

    async def _is_lost_within(self, seconds: float) -> bool:
        # Not `wait_for`: Python 3.11's loses a cancellation that comes in the moment in which the wait ends.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._lost.wait()
        return False

    async def _try_probe(self) -> str | None:
        """Returns why Redis is unavailable; None if it answers."""
        try:
            async with asyncio.timeout(self._command_seconds):
                await self._probe(self._client)
        except (*_LOST, RedisError) as error:
            return _describe(error)
        except Exception as error:  # an error in Glimpse must not end the watch: Redis would stay unavailable
            _logger.exception("the probe of the %s failed", self._name)
            return _describe(error)
        return None

    def _change(self, *, is_available: bool, reason: str) -> None:
        if is_available == self.is_available:
            if not self._tried.is_set() and not is_available:
                _logger.warning("the %s at %s is unavailable: %s", self._name, self._address, reason)
            return
        self.is_available = is_available
        if is_available:
            self._lost.clear()
            _logger.info("the %s at %s is available", self._name, self._address)
        else:
            self._lost.set()
            _logger.warning("the %s at %s is unavailable: %s", self._name, self._address, reason)
        self._on_change(is_available)


def _client(address: StoreAddress, command_seconds: float) -> Client:
    tls: dict[str, Any] = {}
    if address.tls:
        tls = {"ssl": True, "ssl_ca_certs": str(address.ca) if address.ca else None}
    return redis.Redis(
        host=address.host,
        port=address.port,
        db=address.database,
        username=address.username,
        password=address.password,
        socket_timeout=command_seconds,
        socket_connect_timeout=command_seconds,
        # `RedisLink` decides when to try again.
        retry=Retry(NoBackoff(), 0),
        # The older protocol: every Redis and Valkey speaks it, and it has no messages that nobody asked for.
        protocol=2,
        driver_info=None,
        **tls,
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
