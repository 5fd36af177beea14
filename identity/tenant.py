"""A tenant: who a request is served for, whose caches it uses, and what it has used."""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol

from pydantic import ByteSize, ConfigDict, Field

from glimpse.identity.quota import Quota, quota_exceeded, too_many_requests
from glimpse.media.cache.memory_budget import MemoryShare

_NAME = re.compile(r"[!-~]{1,128}")
_TAG_DOMAIN, _NAMESPACE_DOMAIN = b"glimpse tenant\0", b"glimpse namespace\0"
_TAG_CHARACTERS = 32

_Positive = Annotated[int, Field(ge=1)]
_Size = Annotated[int, ByteSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a tenant may use. None: as much as the server's own limits allow."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    max_concurrent_requests: _Positive | None = None
    """RPCs in progress."""
    requests_per_minute: _Positive | None = None
    """RPCs that begin."""
    tokens_per_minute: _Positive | None = None
    """Tokens of prompts and completions, charged when a request ends."""
    min_priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    """The smallest `priority`, which is the most urgent one, that its requests may have."""
    max_completions: _Positive | None = None
    """Completions of a request: `n` times its prompts."""
    max_completion_tokens: _Positive | None = None
    """Tokens of a completion."""
    max_media_bytes: _Size | None = None
    """Memory for the media of all its requests in progress: files, uploads and pixels."""
    max_upload_bytes: Annotated[_Size, Field(ge=1024)] | None = None
    """Bytes of the tenant's stored uploads together."""


class SharedCounts(Protocol):
    """Counts what tenants use in several processes. Tenants are named by their tags."""

    async def admit(self, tenant: str, limits: Limits) -> None:
        """Counts a request that begins. Raises QuotaExceededError, without counting it."""

    def release(self, tenant: str) -> None:
        """A request has ended."""

    def charge(self, tenant: str, num_tokens: int, tokens_per_minute: int) -> None:
        """Counts tokens, whether or not they are left."""


class Tenant:
    """A tenant as this process knows it. The nameless one sends the requests of servers without authentication."""

    def __init__(
        self, name: str = "", *, shared: SharedCounts | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            name: Name of the tenant; empty: the nameless one.
            clock: Returns the time in seconds.
        """
        self.name = name
        self._tag = hashlib.sha256(_TAG_DOMAIN + name.encode()).hexdigest()[:_TAG_CHARACTERS]
        self.namespace_prefix = f"{self._tag}." if name else ""
        """What all of its cache namespaces begin with, and no other tenant's."""
        self.limits = Limits()
        self.media = MemoryShare()
        """What the media of its requests occupy."""
        self._purge = ""
        self._num_running = 0
        self._requests, self._tokens = Quota(clock), Quota(clock)
        self._shared = shared

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it runs or is counted: a new object for the same tenant would be the same."""
        limits = self.limits
        return not (
            self._num_running
            or self.media.num_bytes
            or _is_counted(self._requests, limits.requests_per_minute)
            or _is_counted(self._tokens, limits.tokens_per_minute)
        )

    def set_limits(self, limits: Limits) -> None:
        """Changes its limits. What it has used stays counted."""
        self.limits = limits
        self.media.max_bytes = limits.max_media_bytes

    def namespace(self, cache_salt: str) -> str:
        """Returns the cache namespace of its requests with this salt.

        It hashes both, so that no tenant reaches another's namespace by its choice of a salt. The nameless tenant's
        namespaces are the salts themselves.
        """
        if not self.name:
            return cache_salt
        digest = hashlib.sha256(_NAMESPACE_DOMAIN + self.name.encode() + b"\0" + cache_salt.encode())
        return self.namespace_prefix + digest.hexdigest()

    def engine_namespace(self, namespace: str) -> str:
        """Returns under which name the engine caches what belongs to one of the tenant's namespaces."""
        return f"{namespace}/{self._purge}" if self._purge else namespace

    def forget_prefixes(self, purge: str) -> None:
        """Gives the engine's caches of the tenant's requests other names: what they hold is never hit again.

        `purge` names the purge, and no other one.
        """
        self._purge = purge

    async def begin_request(self) -> None:
        """Counts an RPC that begins. `end_request` must follow. Raises QuotaExceededError, without counting it.

        The count of several processes comes last: what this one refuses by its own, that would refuse too.
        """
        limits = self.limits
        self._begin_here(limits)
        if self._shared is None:
            return
        try:
            await self._shared.admit(self._tag, limits)
        except BaseException:
            _use(self._requests, -1, limits.requests_per_minute)
            self._num_running -= 1
            raise

    def end_request(self, num_tokens: int) -> None:
        """Counts the end of an RPC, and the tokens of its prompts and completions."""
        self._num_running -= 1
        if self._shared is not None:
            self._shared.release(self._tag)
        self.charge(num_tokens)

    def charge(self, num_tokens: int) -> None:
        """Counts tokens that a request has used, also after its end."""
        if self.limits.tokens_per_minute is not None:
            self._tokens.use(num_tokens, self.limits.tokens_per_minute)
            if self._shared is not None:
                self._shared.charge(self._tag, num_tokens, self.limits.tokens_per_minute)

    def _begin_here(self, limits: Limits) -> None:
        """Counts an RPC that begins on this server, or raises QuotaExceededError."""
        most = limits.max_concurrent_requests
        if most is not None and self._num_running >= most:
            raise too_many_requests(most)
        _check(self._tokens, limits.tokens_per_minute, "tokens")
        _check(self._requests, limits.requests_per_minute, "requests")
        _use(self._requests, 1, limits.requests_per_minute)
        self._num_running += 1


def is_tenant_name(name: str) -> bool:
    """Whether a tenant may have this name: 1 to 128 visible ASCII characters."""
    return _NAME.fullmatch(name) is not None


def _check(quota: Quota, per_minute: int | None, what: str) -> None:
    if per_minute is not None and (seconds := quota.wait_seconds(1, per_minute)) > 0:
        raise quota_exceeded(what, per_minute, seconds)


def _is_counted(quota: Quota, per_minute: int | None) -> bool:
    return per_minute is not None and quota.wait_seconds(per_minute, per_minute) > 0


def _use(quota: Quota, amount: int, per_minute: int | None) -> None:
    if per_minute is not None:
        quota.use(amount, per_minute)
