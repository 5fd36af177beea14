"""Policy of the gRPC server's connections: streams, keepalive, pings and age, as channel arguments of gRPC's core."""

import math

from glimpse.native.open_files import MAX_CONNECTIONS, max_connections
from glimpse.server.settings import ListenSettings

MIN_PING_INTERVAL_SECONDS = 1.0
"""Pings that come sooner after each other are counted, until the server sends data."""
MAX_PING_STRIKES = 20
"""More counted pings close the connection (GOAWAY, `too_many_pings`)."""
MAX_CONCURRENT_STREAMS = 512
"""RPCs in progress on a connection. gRPC's clients let further ones wait, so that a flood waits at its own client and
not in the queue that all clients share. As many as the gateway accepts on a client's connection; its own connections to
the server have at most 100."""

MAX_IDLE_SECONDS = 300.0
"""After which a connection without calls is told to go, as at the gateway. gRPC's clients connect anew for the next."""

Options = tuple[tuple[str, int], ...]


def connection_options(listen: ListenSettings) -> Options:
    """Returns the channel arguments."""
    # The last one is of all pings: those for keepalive are not sent while one that measures bandwidth is unanswered.
    keepalive = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options: Options = (
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        # Further ones are closed. gRPC has no limit of its own.
        ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, max_connections())),
        ("grpc.max_connection_idle_ms", _milliseconds(MAX_IDLE_SECONDS)),
        # Would also count streams that the client has cancelled, and refuse new ones until their handlers have ended.
        ("grpc.http.overload_protection", 0),
        *((name, _milliseconds(listen.keepalive_time)) for name in keepalive),
        # By default the server stops to ping after two pings without data, and long silent calls are the point here.
        ("grpc.http2.max_pings_without_data", 0),
        # For the server's own pings, and so that clients may ping without calls.
        ("grpc.keepalive_permit_without_calls", 1),
        # Named GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS. gRPC's default is 5 minutes and two strikes: it
        # would kill long calls of clients that ping every 10 s.
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(MIN_PING_INTERVAL_SECONDS)),
        ("grpc.http2.max_ping_strikes", MAX_PING_STRIKES),
    )
    if listen.max_connection_age is None:
        return options
    # Without a grace period: gRPC would cut calls that outlast it.
    return (*options, ("grpc.max_connection_age_ms", _milliseconds(listen.max_connection_age)))


def _milliseconds(seconds: float) -> int:
    return math.ceil(1000 * seconds)
