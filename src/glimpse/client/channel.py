"""The channel's target and options, among them the retries, which gRPC does by itself."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from glimpse.client.tls import Tls

DEFAULT_TARGET = "127.0.0.1:50051"
"""Where `glimpse up` and `glimpse serve` listen unless `--port` changes it."""

MAX_RETRIES = 4
"""The largest number of retries; gRPC makes at most five attempts."""

_RETRY_BUFFER_BYTES = 128 << 20
"""Requests up to this size, media included, are kept for retries; gRPC's default is 256 KiB."""

_PING_MILLISECONDS = 20_000
"""How long the server may be silent before it is pinged, and then before its calls end: a machine that is gone closes
no connection."""


_ChannelT = TypeVar("_ChannelT")


def open_channel(
    insecure: Callable[..., _ChannelT],
    secure: Callable[..., _ChannelT],
    target: str,
    credentials: grpc.ChannelCredentials | None,
    tls: Tls | None,
    max_retries: int,
) -> _ChannelT:
    """Opens a channel with one of gRPC's two functions. Raises ValueError and OSError as `Client` does."""
    target, options = _check_target(target), _channel_options(max_retries)
    if tls is not None:
        if credentials is not None:
            raise ValueError("'tls': expected None beside 'credentials', which replace it")
        credentials = tls.credentials()
        options += tls.channel_options()
    return insecure(target, options) if credentials is None else secure(target, credentials, options)


def _check_target(target: str) -> str:
    """Returns the target. Raises ValueError for a URL."""
    scheme, separator, address = target.partition("://")
    if separator and scheme in ("http", "https", "grpc", "grpcs"):
        raise ValueError(
            f"'target': expected HOST:PORT, got '{target}'; leave out the scheme: '{address.split('/')[0]}'"
        )
    return target


def _channel_options(max_retries: int) -> list[tuple[str, Any]]:
    """Returns the options of a channel whose calls are retried while the server is UNAVAILABLE, or closes its port.

    gRPC retries a call only before the first message of its response, within its deadline, and after the delay that
    the server asks for (`grpc-retry-pushback-ms`), if it does. https://github.com/grpc/proposal/blob/master/A6-client-retries.md
    """
    if not 0 <= max_retries <= MAX_RETRIES:
        raise ValueError(f"'max_retries': expected a number from 0 to {MAX_RETRIES}, got {max_retries}")
    pings = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options: list[tuple[str, Any]] = [
        *((name, _PING_MILLISECONDS) for name in pings),
        ("grpc.http2.max_pings_without_data", 0),
        # The server has its own limits, which it explains; gRPC's default is 4 MiB.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.per_rpc_retry_buffer_size", _RETRY_BUFFER_BYTES),
    ]
    if max_retries:
        options.append(("grpc.service_config", json.dumps({"methodConfig": [_retry_policy(max_retries)]})))
    return options


def _retry_policy(max_retries: int) -> dict[str, Any]:
    policy = {
        "maxAttempts": max_retries + 1,
        "initialBackoff": "0.25s",
        "maxBackoff": "4s",
        "backoffMultiplier": 2,
        # gRPC answers CANCELLED to calls that reach a server in the moment in which it closes its port. A call that its
        # own client cancels is not retried.
        "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
    }
    return {"name": [{}], "retryPolicy": policy}
